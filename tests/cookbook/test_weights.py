"""Adapters of models with experts or an image part: merged weights are compared with W + scale · B @ A, done one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tinker_cookbook.exceptions import ConfigurationError, WeightsAdapterError, WeightsMergeError
from tinker_cookbook.weights import build_hf_model, build_lora_adapter

HIDDEN, INNER, EXPERTS, RANK, SCALE = 4, 6, 3, 2, 8.0
OWNER = "model.layers.0.mlp.experts"
SIZES = {"gate_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER), "up_proj": (INNER, HIDDEN)}
NAMES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def factors(name: str, out: int, inner: int, *stack: int, shared: bool = False) -> dict[str, torch.Tensor]:
    key = f"base_model.model.{name}"
    a = torch.randn(*(1 for _ in stack if shared), *(() if shared else stack), RANK, inner)
    return {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": torch.randn(*stack, out, RANK)}


def expert_factors(shared: bool = False) -> dict[str, torch.Tensor]:
    parts = [factors(f"{OWNER}.{NAMES[part]}", *size, EXPERTS, shared=shared) for part, size in SIZES.items()]
    return {key: tensor for part in parts for key, tensor in part.items()}


def delta(adapter: dict[str, torch.Tensor], part: str, expert: int) -> torch.Tensor:
    a, b = (adapter[f"base_model.model.{OWNER}.{NAMES[part]}.lora_{half}.weight"] for half in "AB")
    return SCALE * b[expert] @ a[expert if a.shape[0] > 1 else 0]


def write_model(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> str:
    folder.mkdir()
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor]) -> str:
    folder.mkdir()
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    (folder / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": SCALE * RANK}))
    return str(folder)


def merge(tmp_path: Path, base: str, adapter: dict[str, torch.Tensor], **options: Any) -> dict[str, torch.Tensor]:
    out = build_hf_model(
        base_model=base,
        adapter_path=write_adapter(tmp_path / "adapter", adapter),
        output_path=str(tmp_path / "merged"),
        **{"dtype": "float32", **options},
    )
    return load_file(f"{out}/model.safetensors")


@pytest.mark.parametrize("shared", [False, True])
def test_experts_in_weights_of_their_own(tmp_path: Path, shared: bool) -> None:
    tensors = {f"{OWNER}.{e}.{part}.weight": torch.randn(size) for e in range(EXPERTS) for part, size in SIZES.items()}
    adapter = expert_factors(shared)
    base = write_model(tmp_path / "base", tensors, model_type="qwen3_moe")
    merged = merge(tmp_path, base, adapter, merge_strategy="full")
    assert set(merged) == set(tensors)
    for e in range(EXPERTS):
        for part in SIZES:
            key = f"{OWNER}.{e}.{part}.weight"
            torch.testing.assert_close(merged[key], tensors[key] + delta(adapter, part, e))
    out = build_lora_adapter(
        base_model=base, adapter_path=str(tmp_path / "adapter"), output_path=str(tmp_path / "converted")
    )
    converted = load_file(f"{out}/adapter_model.safetensors")
    assert len(converted) == 2 * 3 * EXPERTS
    for e in range(EXPERTS):
        a, b = (converted[f"base_model.model.{OWNER}.{e}.down_proj.lora_{half}.weight"] for half in "AB")
        torch.testing.assert_close(SCALE * b @ a, delta(adapter, "down_proj", e))
    config = json.loads((tmp_path / "converted" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["down_proj", "gate_proj", "up_proj"]


@pytest.mark.parametrize(
    ("kind", "input_first", "alternating"),
    [("qwen3_5_moe", False, False), ("qwen3_vl_moe", True, False), ("gpt_oss", True, True)],
)
def test_experts_in_one_weight(tmp_path: Path, kind: str, input_first: bool, alternating: bool) -> None:
    shapes = {"gate_up_proj": (EXPERTS, 2 * INNER, HIDDEN), "down_proj": (EXPERTS, HIDDEN, INNER)}
    by_output = {name: torch.randn(shape) for name, shape in shapes.items()}
    written = {
        f"{OWNER}.{name}": (weight.transpose(1, 2) if input_first else weight).contiguous()
        for name, weight in by_output.items()
    }
    adapter = expert_factors()
    merged = merge(tmp_path, write_model(tmp_path / "base", written, model_type=kind), adapter)
    for e in range(EXPERTS):
        gate, up = delta(adapter, "gate_proj", e), delta(adapter, "up_proj", e)
        rows = [row for pair in zip(gate, up, strict=True) for row in pair] if alternating else [*gate, *up]
        for name, change in (("gate_up_proj", torch.stack(rows)), ("down_proj", delta(adapter, "down_proj", e))):
            got = merged[f"{OWNER}.{name}"][e]
            torch.testing.assert_close(got.T if input_first else got, by_output[name][e] + change)


def test_modules_are_named_as_the_base_model_names_them(tmp_path: Path) -> None:
    text = "model.language_model.layers.0"
    tensors = {f"{text}.self_attn.q_proj.weight": torch.zeros(4, 4), "lm_head.weight": torch.zeros(8, 4)}
    adapter = factors("model.layers.0.attn.q_proj", 4, 4) | factors("model.unembed_tokens", 8, 4)
    base = write_model(tmp_path / "base", tensors, model_type="qwen3_vl")
    merged = merge(tmp_path, base, adapter)
    assert all(weight.abs().max() > 0 for weight in merged.values()) and set(merged) == set(tensors)
    out = build_lora_adapter(base_model=base, adapter_path=str(tmp_path / "adapter"), output_path=str(tmp_path / "p"))
    modules = {
        key.removeprefix("base_model.model.").split(".lora_")[0]
        for key in load_file(f"{out}/adapter_model.safetensors")
    }
    assert modules == {f"{text}.self_attn.q_proj", "lm_head"}


def test_what_cannot_be_done_is_refused_with_the_errors_of_python(tmp_path: Path) -> None:
    tensors = {"model.layers.0.self_attn.q_proj.weight": torch.zeros(4, 4)}
    base = write_model(tmp_path / "base", tensors, model_type="qwen3")
    adapter = write_adapter(tmp_path / "adapter", factors("model.layers.0.self_attn.q_proj", 4, 4))
    new = str(tmp_path / "new")
    for build in (build_hf_model, build_lora_adapter):
        with pytest.raises(FileExistsError):
            build(base_model=base, adapter_path=adapter, output_path=base)
        with pytest.raises(FileNotFoundError):
            build(base_model=base, adapter_path=str(tmp_path), output_path=new)
    for options in ({"dtype": "int3"}, {"merge_strategy": "some"}):
        with pytest.raises(ConfigurationError, match="unknown"):
            build_hf_model(base_model=base, adapter_path=adapter, output_path=new, **options)  # type: ignore[arg-type]
    empty = write_adapter(
        tmp_path / "empty", {"base_model.model.model.layers.0.mlp.experts.w1.lora_A.weight": torch.zeros(0)}
    )
    with pytest.raises(WeightsAdapterError, match="no LoRA factors"):
        build_lora_adapter(base_model=base, adapter_path=empty, output_path=new)
    other = write_adapter(tmp_path / "other", factors("model.layers.9.self_attn.q_proj", 4, 4))
    with pytest.raises(WeightsMergeError, match="no weight"):
        build_hf_model(base_model=base, adapter_path=other, output_path=new)
    assert not (tmp_path / "new").exists()
