"""Every supported family computes what transformers computes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from tinker_backend.models.tiny import FAMILIES
from tinker_backend.runtime.architecture import UnsupportedModel, read_architecture
from tinker_backend.runtime.attention import PackLayout, packed_attention
from tinker_backend.runtime.base_model import BaseModel, load_base_model, read_weights, unfuse
from tinker_backend.runtime.decoder import Adapters
from tinker_backend.runtime.lora import AdapterSegment

LENGTHS = [30, 7, 7, 19, 1, 64, 33]


def packed_logits(base: BaseModel, sequences: list[torch.Tensor]) -> torch.Tensor:
    """Logits (T, V) of all sequences in one packed forward."""
    layout = PackLayout([len(s) for s in sequences], torch.device("cpu"))
    with torch.no_grad():
        hidden = base.decoder.hidden(
            base.weights,
            torch.cat(sequences),
            layout.positions,
            lambda _, q, k, v: packed_attention(q, k, v, layout, base.decoder.scale),
            Adapters([AdapterSegment(0, layout.tokens, None)]),
        )
        return F.linear(hidden, base.decoder.head(base.weights, []).weight, base.weights.get("head.bias"))


def random_sequences(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 512, (n,), generator=generator) for n in lengths]


def transformers_logits(folder: Path, sequences: list[torch.Tensor]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return torch.cat([model(input_ids=s[None]).logits[0] for s in sequences])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_logits_equal_those_of_transformers_one_by_one(
    family: str, tied: bool, tiny_base: Callable[..., BaseModel]
) -> None:
    base = tiny_base(family, tied)
    sequences = random_sequences(LENGTHS)
    ours, theirs = packed_logits(base, sequences), transformers_logits(base.folder, sequences)
    assert theirs.std() > 0.3
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_unfused_weights_are_the_tensors_of_the_checkpoint(family: str, tiny_base: Callable[..., BaseModel]) -> None:
    from safetensors.torch import load_file

    base = tiny_base(family, False)
    expected = load_file(str(base.folder / "model.safetensors"))
    written = unfuse(base.architecture, base.weights)
    assert set(written) == set(expected)
    assert all(torch.equal(written[name], expected[name]) for name in expected)


ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("kind", ROPES)
def test_scaled_rotary_embeddings_equal_those_of_transformers(
    kind: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / kind
    shutil.copytree(tiny_folder("llama", False), folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {**ROPES[kind], "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    base = load_base_model(folder, "tiny", [], torch.float32, torch.device("cpu"), 256, 64)
    sequences = random_sequences([150, 40])
    plain = tiny_folder("llama", False)
    ours, theirs = packed_logits(base, sequences), transformers_logits(folder, sequences)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert (theirs - transformers_logits(plain, sequences)).abs().max() > 1e-3


def rewritten_config(folder: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_an_unsupported_architecture_is_refused_by_its_name(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = rewritten_config(tiny_folder("llama"), tmp_path / "mamba", architectures=["MambaForCausalLM"])
    with pytest.raises(UnsupportedModel, match="MambaForCausalLM.*LlamaForCausalLM"):
        read_architecture(folder)


def test_an_unknown_rope_scaling_is_refused_by_its_name(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4}
    folder = rewritten_config(tiny_folder("llama"), tmp_path / "long", rope_parameters=rope)
    with pytest.raises(UnsupportedModel, match="longrope"):
        read_architecture(folder)


def test_a_sliding_window_bounds_the_context(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = rewritten_config(tiny_folder("mistral"), tmp_path / "window", sliding_window=128)
    assert read_architecture(folder).max_positions == 128


def test_a_folder_that_lacks_a_tensor_is_refused_by_its_name(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = rewritten_config(tiny_folder("llama"), tmp_path / "deep", num_hidden_layers=3)
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.2"):
        read_weights(folder, read_architecture(folder), torch.float32, torch.device("cpu"))
