"""Supervised data, training and resume; DPO."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinker
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError, DataValidationError
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.preference.preference_datasets import (
    ChatDatasetBuilderFromComparisons,
    ComparisonBuilderFromJsonl,
)
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised import data as supervised_data
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.common import (
    compute_bpb,
    compute_mean_nll,
    create_rightshifted_model_input_and_leftshifted_targets,
    datum_from_model_input_weights,
)
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


def common(path: str, batch_size: int = 4) -> ChatDatasetBuilderCommonConfig:
    return ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=path, renderer_name="qwen3_instruct", max_length=64, batch_size=batch_size
    )


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": f"n {i % 5}?"}, {"role": "assistant", "content": f"it is {i % 5}"}]}
        for i in range(24)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def sft_config(conversations: Path, log_path: Path, tokenizer_path: str, **changes: Any) -> train.Config:
    builder = FromConversationFileBuilder(
        common_config=common(tokenizer_path), file_path=str(conversations), test_size=4, shuffle_seed=1
    )
    defaults: dict[str, Any] = {
        "log_path": str(log_path),
        "model_name": "tiny",
        "dataset_builder": builder,
        "learning_rate": 0.2,
        "num_epochs": 2,
        "save_every": 3,
        "eval_every": 4,
    }
    return train.Config(**{**defaults, **changes})


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("seed", range(8))
def test_data_are_shifted_cut_and_normalised(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 20))
    tokens = [int(t) for t in rng.integers(0, 99, n)]
    weights = rng.integers(0, 2, n).astype(np.float32)
    max_length = int(rng.integers(2, 25))
    kept = min(n, max_length)
    for reduction in ("mean", "none"):
        datum = datum_from_model_input_weights(tinker.ModelInput.from_ints(tokens), weights, max_length, reduction)  # type: ignore[arg-type]
        expected = weights[1:kept]
        if reduction == "mean" and expected.sum():
            expected = expected / expected.sum()
        assert datum.model_input.to_ints() == tokens[: kept - 1]
        assert datum.loss_fn_inputs["target_tokens"].to_numpy().tolist() == tokens[1:kept]
        np.testing.assert_allclose(datum.loss_fn_inputs["weights"].to_numpy(), expected)


def test_images_are_dropped_whole_when_a_sequence_is_cut() -> None:
    image = tinker.types.ImageChunk(data=b"x", format="png", expected_tokens=5)
    text = tinker.EncodedTextChunk(tokens=[1, 2, 3])
    sequence = tinker.ModelInput(chunks=[text, image, tinker.EncodedTextChunk(tokens=[4, 5])])
    whole = datum_from_model_input_weights(sequence, np.ones(10))
    assert whole.model_input.length == 9
    cut = datum_from_model_input_weights(sequence, np.ones(10), max_length=8)
    assert cut.model_input.to_ints() == [1, 2]
    with pytest.raises(DataValidationError, match="weights"):
        datum_from_model_input_weights(sequence, np.ones(3))


def test_mean_nll_and_bits_per_byte_equal_their_definitions(universal_tokenizer: Any) -> None:
    text = "hello wörld"
    tokens = universal_tokenizer.encode(text, add_special_tokens=False)
    logprobs = -np.arange(1.0, len(tokens) + 1)
    assert compute_mean_nll([logprobs], [np.ones(len(tokens))]) == pytest.approx(float(-logprobs.mean()))
    expected = float(-logprobs.sum()) / (math.log(2) * len(text.encode()))
    assert compute_bpb([logprobs], [np.ones(len(tokens))], [np.asarray(tokens)], universal_tokenizer) == pytest.approx(
        expected
    )
    eos = universal_tokenizer.eos_token_id
    with_eos = compute_bpb(
        [np.append(logprobs, -50.0)], [np.ones(len(tokens) + 1)], [np.asarray([*tokens, eos])], universal_tokenizer
    )
    assert with_eos == pytest.approx(expected)


def test_special_tokens_may_be_told_by_a_method() -> None:
    class Letters:
        def decode(self, tokens: list[int]) -> str:
            return "".join("ab<"[token] for token in tokens)

        def is_special_token(self, token: int) -> bool:
            return token == 2

    logprobs, ones = np.asarray([-1.0, -2.0, -50.0]), np.ones(3)
    # 3 nats over the two bytes of "ab".
    assert compute_bpb([logprobs], [ones], [np.asarray([0, 1, 2])], Letters()) == pytest.approx(1.5 / math.log(2))


def test_empty_pieces_at_the_end_do_not_move_targets() -> None:
    def pieces(*tokens: list[int]) -> list[Any]:
        return [tinker.EncodedTextChunk(tokens=part) for part in tokens]

    whole = create_rightshifted_model_input_and_leftshifted_targets(pieces([1, 2], [3]))
    assert whole[0].to_ints() == [1, 2] and whole[1] == [2, 3]
    inputs, targets = create_rightshifted_model_input_and_leftshifted_targets(pieces([1, 2], [3], [], []))
    assert inputs.to_ints() == [1, 2] and targets == [2, 3]
    for short in ([[1]], [[], [1], []], []):
        with pytest.raises(DataValidationError, match="at least two tokens"):
            create_rightshifted_model_input_and_leftshifted_targets(pieces(*short))


async def test_fine_tuning_learns_and_writes_the_files_of_a_run(
    conversations: Path, tmp_path: Path, fake_service: Any, universal_tokenizer_path: str
) -> None:
    await train.main(sft_config(conversations, tmp_path / "run", universal_tokenizer_path, num_epochs=4))
    metrics = rows(tmp_path / "run")
    assert [row["step"] for row in metrics] == list(range(21))
    assert metrics[19]["train_mean_nll"] < metrics[0]["train_mean_nll"] - 1
    assert metrics[20]["test/nll"] < metrics[0]["test/nll"] - 1
    assert metrics[0]["learning_rate"] == pytest.approx(0.2) and metrics[10]["learning_rate"] == pytest.approx(0.1)
    for key in ("epoch", "progress", "num_sequences", "num_tokens", "num_loss_tokens", "train_mean_bpb", "time/step"):
        assert key in metrics[0], key
    assert fake_service.calls[:4] == ["forward_backward", "optim_step", "forward_backward", "optim_step"]
    for name in ("config.json", "code.diff", "logs.log", "checkpoints.jsonl", "timing_spans.jsonl"):
        assert (tmp_path / "run" / name).exists(), name


@pytest.mark.parametrize("die_at", [4, 6, 9])
async def test_a_killed_and_resumed_run_gives_the_same_numbers(
    die_at: int, conversations: Path, tmp_path: Path, fake_service: Any, universal_tokenizer_path: str
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    await train.main(sft_config(conversations, whole, universal_tokenizer_path))
    expected = fake_service.last_client.state.logits.copy()
    original = train.SubmittedBatch.__init__

    from tinker_cookbook.supervised import loop as loop_module

    real = loop_module.SupervisedLoop._submit

    async def dying(self: Any, step: int, *args: Any) -> Any:
        if step == die_at:
            raise RuntimeError("killed")
        return await real(self, step, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module.SupervisedLoop, "_submit", dying)
        with pytest.raises(RuntimeError, match="killed"):
            await train.main(sft_config(conversations, broken, universal_tokenizer_path))
    await train.main(sft_config(conversations, broken, universal_tokenizer_path))
    assert train.SubmittedBatch.__init__ is original
    np.testing.assert_allclose(fake_service.last_client.state.logits, expected, atol=1e-12)
    for a, b in zip(rows(whole), rows(broken), strict=True):
        assert {k: v for k, v in a.items() if not k.startswith("time/")} == pytest.approx(
            {k: v for k, v in b.items() if not k.startswith("time/")}
        )


async def test_a_finished_run_goes_on_with_more_epochs(
    conversations: Path, tmp_path: Path, fake_service: Any, universal_tokenizer_path: str
) -> None:
    await train.main(sft_config(conversations, tmp_path / "r", universal_tokenizer_path, num_epochs=1))
    await train.main(sft_config(conversations, tmp_path / "r", universal_tokenizer_path, num_epochs=2))
    assert [row["step"] for row in rows(tmp_path / "r")] == list(range(11))


async def test_a_finished_run_that_is_started_again_keeps_its_last_evaluation(
    conversations: Path, tmp_path: Path, fake_service: Any, universal_tokenizer_path: str
) -> None:
    await train.main(sft_config(conversations, tmp_path / "r", universal_tokenizer_path))
    before, calls = rows(tmp_path / "r"), len(fake_service.calls)
    assert "test/nll" in before[-1] and "train_mean_nll" not in before[-1]
    await train.main(sft_config(conversations, tmp_path / "r", universal_tokenizer_path))
    assert rows(tmp_path / "r") == before and len(fake_service.calls) == calls
    assert not list((tmp_path / "r").glob("*.pre_resume_*"))


async def test_the_seed_sets_the_order_of_the_data_and_the_first_weights(
    conversations: Path, tmp_path: Path, fake_service: Any, universal_tokenizer_path: str
) -> None:
    curves = {}
    for name, seed in (("none", None), ("a", 7), ("again", 7), ("b", 8)):
        await train.main(sft_config(conversations, tmp_path / name, universal_tokenizer_path, seed=seed))
        assert fake_service.adapter_seed == seed
        curves[name] = [row["train_mean_nll"] for row in rows(tmp_path / name) if "train_mean_nll" in row]
    assert curves["a"] == curves["again"]
    assert curves["a"] != curves["b"] and curves["a"] != curves["none"]


def test_bad_files_are_refused_with_row_and_field(tmp_path: Path, universal_tokenizer_path: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"messages": [{"role": "user"}]}\n')
    builder = FromConversationFileBuilder(common_config=common(universal_tokenizer_path), file_path=str(path))
    with pytest.raises(DataFormatError, match="row 1.*content"):
        builder()
    missing = FromConversationFileBuilder(common_config=common(universal_tokenizer_path), file_path="nowhere.jsonl")
    with pytest.raises(ConfigurationError, match="nowhere"):
        missing()


# Preferences


@pytest.fixture
def comparisons(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    lines = []
    for i in range(16):
        good = [{"role": "assistant", "content": "yes"}]
        bad = [{"role": "assistant", "content": "no"}]
        first, second, label = (good, bad, "A") if i % 2 else (bad, good, "B")
        prompt = [{"role": "user", "content": f"q{i}"}]
        lines.append(
            {
                "comparison": {"prompt_conversation": prompt, "completion_A": first, "completion_B": second},
                "label": label,
            }
        )
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def dpo_config(comparisons: Path, log_path: Path, tokenizer_path: str, **changes: Any) -> train_dpo.Config:
    builder = DPODatasetBuilderFromComparisons(
        common_config=common(tokenizer_path), comparison_builder=ComparisonBuilderFromJsonl(train_path=str(comparisons))
    )
    defaults: dict[str, Any] = {
        "log_path": str(log_path),
        "model_name": "tiny",
        "dataset_builder": builder,
        "learning_rate": 0.05,
        "num_epochs": 2,
        "save_every": 2,
        "dpo_beta": 0.5,
    }
    return train_dpo.Config(**{**defaults, **changes})


@pytest.mark.parametrize("seed", range(6))
def test_dpo_loss_equals_its_formula_in_value_and_gradient(seed: int) -> None:
    import torch

    rng = np.random.default_rng(seed)
    chosen, rejected, chosen_ref, rejected_ref = rng.normal(size=(4, 5)) * 3
    beta = 0.3
    policy = torch.tensor(np.stack([chosen, rejected]), dtype=torch.float64, requires_grad=True)
    loss, metrics = train_dpo.compute_dpo_loss(
        list(policy[0]), list(policy[1]), list(chosen_ref), list(rejected_ref), beta
    )
    margin = beta * ((chosen - chosen_ref) - (rejected - rejected_ref))
    assert float(loss) == pytest.approx(float(np.mean(np.log1p(np.exp(-margin)))), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(float(np.mean(margin > 0)))
    assert metrics["margin"] == pytest.approx(float(margin.mean()), rel=1e-5)
    loss.backward()
    assert policy.grad is not None
    np.testing.assert_allclose(policy.grad[0].numpy(), -beta / (1 + np.exp(margin)) / 5, rtol=1e-4)


async def test_dpo_learns_to_prefer_and_keeps_its_reference_after_resume(
    comparisons: Path, tmp_path: Path, fake_service: Any, universal_tokenizer_path: str
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    await train_dpo.amain(dpo_config(comparisons, whole, universal_tokenizer_path))
    metrics = rows(whole)
    assert metrics[0]["dpo_loss"] == pytest.approx(math.log(2), rel=1e-4)
    assert metrics[-1]["accuracy"] == 1.0 and metrics[-1]["margin"] > 0.1
    await train_dpo.amain(
        dpo_config(comparisons, broken, universal_tokenizer_path, num_epochs=1, lr_schedule="constant")
    )
    once = rows(broken)[-1]["margin"]
    await train_dpo.amain(
        dpo_config(comparisons, broken, universal_tokenizer_path, num_epochs=2, lr_schedule="constant")
    )
    assert rows(broken)[-1]["margin"] > once, "the margin is measured against the first policy, not the resumed one"


def test_reward_model_data_train_the_label_only(
    comparisons: Path, universal_tokenizer: Any, universal_tokenizer_path: str
) -> None:
    builder = ChatDatasetBuilderFromComparisons(
        common_config=ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=universal_tokenizer_path,
            renderer_name="qwen3_instruct",
            max_length=None,
            batch_size=8,
            train_on_what=TrainOnWhat.LAST_ASSISTANT_MESSAGE,
        ),
        comparison_builder=ComparisonBuilderFromJsonl(train_path=str(comparisons)),
    )
    train_data, _ = builder()
    labels = set()
    for datum in train_data.get_batch(0):
        weights = datum.loss_fn_inputs["weights"].to_numpy()
        assert weights.sum() == 1
        labels.add(
            universal_tokenizer.decode([int(datum.loss_fn_inputs["target_tokens"].to_numpy()[weights.argmax()])])
        )
    assert labels == {"A", "B"}


@pytest.fixture
def chats(tmp_path: Path) -> list[str]:
    """Three local data sets of 6, 3 and 1 conversations, which say where they come from."""
    folders = []
    for name, count in (("a", 6), ("b", 3), ("c", 1)):
        folder = tmp_path / name
        folder.mkdir()
        turns = [
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": f"{name}{i}"}] for i in range(count)
        ]
        (folder / "train.jsonl").write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
        folders.append(str(folder))
    return folders


def mixed(
    chats: list[str], weights: list[float | None], test_size: int, stop: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[str]]:
    """Answers in the training and the held-out rows of a mixture."""
    monkeypatch.setattr(supervised_data, "chat_datasets", lambda _, training, held_out: (training, held_out))
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer="tiny", renderer_name="role_colon", max_length=64, batch_size=1
    )
    sources = [
        supervised_data.HFDatasetSource(path=path, weight=weight) for path, weight in zip(chats, weights, strict=True)
    ]
    builder = supervised_data.InterleavedChatDatasetBuilder(
        common_config=common, sources=sources, test_size=test_size, stopping_strategy=stop
    )
    train, test = builder()
    return [row[1]["content"] for row in train], [row[1]["content"] for row in test]  # type: ignore[union-attr]


@pytest.mark.parametrize("weights", [[None, None, None], [1.0, 1.0, 1.0]], ids=["by_size", "weighted"])
@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"])
def test_mixtures_hold_out_rows_of_all_sources_and_train_on_the_others(
    stop: str, weights: list[float | None], chats: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = mixed(chats, weights, 4, stop, monkeypatch)
    assert len(set(test)) == 4 and not set(test) & set(train)
    everything = {f"{name}{i}" for name, count in (("a", 6), ("b", 3), ("c", 1)) for i in range(count)}
    if stop == "first_exhausted":
        assert set(train) <= everything - set(test)
    else:
        assert set(train) == everything - set(test)
    if stop == "all_exhausted_without_replacement":
        assert len(train) == 6


def test_mixtures_without_enough_rows_or_with_contradicting_weights_are_refused(
    chats: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[float | None]
    for weights, size, text in (
        ([1.0, 1.0, 1.0], 8, "no training row"),
        ([1.0, None, 1.0], 0, "every source, or to none"),
        ([0.0, 0.0, 0.0], 0, "not all 0"),
        ([1.0, -1.0, 1.0], 0, "not negative"),
        ([1.0, float("nan"), 1.0], 0, "finite"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            mixed(chats, weights, size, "all_exhausted", monkeypatch)
    train, test = mixed(chats, [0.0, 1.0, 1.0], 2, "all_exhausted", monkeypatch)
    assert {text[0] for text in train} == {"b", "c"} and {text[0] for text in test} == {"b"}
