"""The calculator counts what the code allocates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinker_backend.scaling.__main__ import report
from tinker_backend.scaling.estimate import (
    GIB,
    SampleKnobs,
    TrainKnobs,
    sample_memory,
    tokens_to_hide_gather,
    traffic,
    train_memory,
)
from tinker_backend.scaling.model_shape import PRESETS, QWEN3_4B, QWEN3_235B, read_shape


@pytest.mark.parametrize(
    ("name", "billions", "active"), [("4B", 4.02, 4.02), ("32B", 32.8, 32.8), ("235B-A22B", 235, 22)]
)
def test_presets_have_the_parameters_of_their_names(name: str, billions: float, active: float) -> None:
    shape = PRESETS[name]
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert shape.active / 1e9 == pytest.approx(active, rel=0.02)


def test_counts_equal_those_of_a_real_model_and_adapter(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tinker_backend.models.tiny import make_tiny_model
    from tinker_backend.runtime.architecture import read_architecture
    from tinker_backend.runtime.lora import AdapterLayout
    from tinker_backend.runtime.roles import LoraSpec

    for tied in (True, False):
        folder = make_tiny_model(tmp_path / str(tied), "llama", tied=tied)
        architecture, shape = read_architecture(folder), read_shape(folder)
        counted = sum(torch.Size(size).numel() for size, _ in architecture.plan().values())
        assert shape.parameters == counted
        assert shape.lora(8) == AdapterLayout(architecture, LoraSpec(rank=8)).size


def test_sharding_divides_what_is_sharded_and_nothing_else() -> None:
    one, eight = (train_memory(QWEN3_4B, TrainKnobs(ranks, 0)) for ranks in (1, 8))
    for part in ("base", "gradients", "optimizer"):
        assert getattr(one, part) == 8 * getattr(eight, part)
    assert one.base + one.gradients + one.optimizer == 16 * QWEN3_4B.parameters
    assert one.activations == eight.activations and one.gathered == 0 < eight.gathered
    assert train_memory(QWEN3_4B, TrainKnobs(8, 0, offload=True)).host == eight.base + eight.gradients + eight.optimizer


def test_adapters_cost_a_fraction_of_all_weights_and_checkpointing_saves_activations() -> None:
    lora, full = (train_memory(QWEN3_4B, TrainKnobs(8, rank)) for rank in (32, 0))
    assert lora.gpu < full.gpu / 1.5 and lora.optimizer == 0
    kept = train_memory(QWEN3_4B, TrainKnobs(8, 32, checkpointing=False))
    assert kept.activations > 5 * lora.activations


def test_the_cache_is_what_weights_leave_over() -> None:
    one, two = (sample_memory(QWEN3_4B, SampleKnobs(tp), 80 * GIB) for tp in (1, 2))
    assert two.weights == one.weights / 2 and two.cache_tokens > 2 * one.cache_tokens
    assert sample_memory(QWEN3_235B, SampleKnobs(4), 80 * GIB).cache_tokens == 0
    assert QWEN3_4B.kv_bytes_per_token == 147456


def test_traffic_follows_the_weights_and_large_packs_hide_it() -> None:
    lora, full = (traffic(QWEN3_4B, TrainKnobs(8, rank)) for rank in (32, 0))
    assert lora.gather == full.gather == pytest.approx(2 * 2 * QWEN3_4B.parameters * 7 / 8)
    assert lora.publish < full.publish / 20 and full.publish == 2 * QWEN3_4B.parameters
    assert full.flops / lora.flops == pytest.approx(8 / 6)
    # 2 gathers of 2 bytes a weight against 6 FLOPs a weight and token.
    assert tokens_to_hide_gather(QWEN3_4B, TrainKnobs(8, 32), 6e14, 1e11) == pytest.approx(
        7 / 8 * 4 / 6 * 6000, rel=0.01
    )
    assert traffic(QWEN3_4B, TrainKnobs(1, 0)).gather == 0


def test_the_report_has_a_table_for_each_model(tmp_path: Path) -> None:
    text = report(list(PRESETS.values()), 80, 50e9, 400e12, 16384)
    assert text.count("### ") == 3 and text.count("| 512 | all weights |") == 6
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_shape(tmp_path).kv_heads == 2


def test_the_tables_of_the_documentation_are_those_of_the_calculator() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert report(list(PRESETS.values()), 80, 50e9, 400e12, 16384) in page
