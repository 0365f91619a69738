"""Two FSDP2 ranks compute what the embedded trainer computes, for adapters and for all weights."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tinker_backend.runtime.roles import (
    Datum,
    LoraSpec,
    LossRequest,
    LossResult,
    OptimParams,
    RunSpec,
    RuntimeFault,
    SampleRequest,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]
STEP = OptimParams(learning_rate=2e-3, eps=1e-6, weight_decay=0.1, grad_clip_norm=1.0)
Open = Callable[..., Any]


def run_of(rank: int, name: str = "run", seed: int = 5) -> RunSpec:
    return RunSpec(name, "tiny", LoraSpec(rank=rank, seed=seed))


def result(value: LossResult | RuntimeFault) -> LossResult:
    assert isinstance(value, LossResult), value
    return value


def step(trainer: Any, batch: list[Any], params: OptimParams = STEP) -> tuple[LossResult, dict[str, float]]:
    got = result(trainer.forward_backward([LossRequest("run", 1, batch, "cross_entropy")])[0])
    return got, trainer.optim_step("run", params)


def weights(trainer: Any, folder: Path, run: str = "run") -> dict[str, np.ndarray]:
    trainer.save(run, str(folder), "sampler")
    return {key: value for name in folder.glob("*.safetensors") for key, value in load_file(name).items()}


def gradients(trainer: Any, folder: Path, model: Path) -> dict[str, np.ndarray]:
    """What a run has accumulated, by name, out of its training state; that of sharded weights is torch's own format."""
    import torch
    import torch.distributed.checkpoint as dcp

    from tinker_backend.runtime.architecture import read_architecture
    from tinker_backend.runtime.training_run import FullLayout

    trainer.save("run", str(folder), "training")
    if (folder / "state").is_dir():
        places = FullLayout(read_architecture(model)).places
        state = {f"gradients.{name}": torch.full(shape, torch.nan) for name, (_, shape) in places.items()}
        dcp.load(state, checkpoint_id=str(folder / "state"), no_dist=True)
        return {name.removeprefix("gradients."): tensor.numpy() for name, tensor in state.items()}
    flat = torch.from_numpy(load_file(folder / "gradients.safetensors")["gradients"])
    if (folder / "model.safetensors").exists():
        return {k: v.numpy() for k, v in FullLayout(read_architecture(model)).tensors(flat).items()}
    return {"adapter": flat.numpy()}


def assert_same_weights(ours: Any, theirs: Any, folder: Path, atol: float = 1e-5) -> None:
    left, right = weights(ours, folder / "ours"), weights(theirs, folder / "theirs")
    assert left.keys() == right.keys() and left
    for name, value in right.items():
        np.testing.assert_allclose(left[name], value, atol=atol, rtol=0, err_msg=name)


def test_gradients_and_five_steps_equal_the_embedded_engine(
    tiny_models: Any, open_trainer: Open, embedded: Open, cluster_data: Any, tmp_path: Path
) -> None:
    folder = tiny_models("qwen3", tied=True)
    ours, theirs = open_trainer(folder, max_tokens_per_batch=60), embedded(folder)
    for rank in (4, 0):
        for trainer in (ours, theirs):
            trainer.create(run_of(rank))
        for number in range(5):
            batch = cluster_data.batch([7, 1, 2, 5, 8][number])
            (got, metrics), (expected, expected_metrics) = step(ours, batch), step(theirs, batch)
            assert got.metrics == pytest.approx(expected.metrics, rel=1e-5, abs=1e-5)
            assert metrics == pytest.approx(expected_metrics, rel=1e-5)
            for a, b in zip(got.outputs, expected.outputs, strict=True):
                np.testing.assert_allclose(a["logprobs"], b["logprobs"], atol=1e-5)
        assert_same_weights(ours, theirs, tmp_path / f"rank{rank}")
        # From here both have the same weights, so that the gradients differ by their own arithmetic alone.
        for trainer in (ours, theirs):
            trainer.load(run_of(rank), str(tmp_path / f"rank{rank}" / "theirs"), False)
        for _ in range(2):
            # Two calls add up.
            request = LossRequest("run", 1, cluster_data.batch(9), "cross_entropy")
            for trainer in (ours, theirs):
                result(trainer.forward_backward([request])[0])
        left, right = (
            gradients(trainer, tmp_path / f"{name}-gradients{rank}", folder)
            for trainer, name in ((ours, "ours"), (theirs, "theirs"))
        )
        assert left.keys() == right.keys()
        assert max(float(np.abs(value).max()) for value in right.values()) > 0.1
        for name, value in right.items():
            np.testing.assert_allclose(left[name], value, atol=1e-5, rtol=1e-5, err_msg=name)


def test_many_runs_in_one_pass_and_a_failing_loss(
    tiny_models: Any, open_trainer: Open, embedded: Open, cluster_data: Any, tmp_path: Path
) -> None:
    folder = tiny_models("llama")
    ours, theirs = open_trainer(folder, max_tokens_per_batch=50, checkpointing=True), embedded(folder)
    names = ["a", "b", "c", "all"]
    for trainer in (ours, theirs):
        for index, name in enumerate(names):
            trainer.create(run_of(0 if name == "all" else [4, 8, 16][index], name, index + 1))
    mask = np.ones(17, dtype=np.float32)
    requests = [
        LossRequest("a", 1, cluster_data.batch(5), "cross_entropy"),
        LossRequest("b", 1, [cluster_data.policy_datum(n) for n in (9, 30, 4)], "ppo"),
        LossRequest("c", 1, [cluster_data.policy_datum(17, sequence_ratio_mask=mask)], "gspo"),
        LossRequest("all", 1, cluster_data.batch(3), "cross_entropy"),
        LossRequest("c", 2, cluster_data.batch(2), "cross_entropy", forward_only=True),
    ]
    for got, expected in zip(ours.forward_backward(requests), theirs.forward_backward(requests), strict=True):
        assert result(got).metrics == pytest.approx(result(expected).metrics, rel=1e-4, abs=1e-4)
    ours.release()
    # A loss without a graph, one that is unknown, and values that overflow: each fails alone, beside
    # good requests of the same run, and leaves no gradient.
    bad = [
        LossRequest("a", 2, cluster_data.batch(2), "custom", graph={"nodes": "broken"}),
        LossRequest("a", 3, cluster_data.batch(2), "nonsense"),
        LossRequest("b", 2, [cluster_data.policy_datum(6, advantages=np.full(6, 3e38, np.float32))], "ppo"),
        LossRequest("b", 3, cluster_data.batch(2), "cross_entropy"),
        LossRequest("c", 3, cluster_data.batch(2), "cross_entropy"),
        LossRequest("all", 2, [cluster_data.policy_datum(6, advantages=np.full(6, 3e38, np.float32))], "ppo"),
        LossRequest("all", 3, cluster_data.batch(2), "cross_entropy"),
    ]
    answers = ours.forward_backward(bad)
    theirs.forward_backward(bad)
    assert [isinstance(answer, RuntimeFault) for answer in answers] == [True] * 3 + [False] * 2 + [True, False], answers
    for name in names:
        for trainer in (ours, theirs):
            trainer.optim_step(name, STEP)
        left, right = weights(ours, tmp_path / f"ours-{name}", name), weights(theirs, tmp_path / f"theirs-{name}", name)
        for key, value in right.items():
            np.testing.assert_allclose(left[key], value, atol=1e-5, err_msg=f"{name} {key}")


def test_a_run_moves_to_another_number_of_ranks_and_a_lost_rank_is_noticed(
    tiny_models: Any, open_trainer: Open, embedded: Open, cluster_data: Any, tmp_path: Path
) -> None:
    from tinker_backend.runtime.ray.ray_cluster import ActorLost

    folder = tiny_models("qwen3", tied=True)
    first, theirs = open_trainer(folder), embedded(folder)
    batches = [cluster_data.batch(4) for _ in range(6)]
    for rank, name in ((4, "lora"), (0, "full")):
        for trainer in (first, theirs):
            trainer.create(run_of(rank, name))
            for batch in batches[:2]:
                trainer.forward_backward([LossRequest(name, 1, batch, "cross_entropy")])
                trainer.optim_step(name, STEP)
            # Gradients that wait for a step are part of the state.
            trainer.forward_backward([LossRequest(name, 1, batches[2], "cross_entropy")])
        first.save(name, str(tmp_path / name), "training")
    os.kill(first.pids()[1], signal.SIGKILL)
    with pytest.raises(ActorLost):
        first.forward_backward([LossRequest("lora", 1, batches[3], "cross_entropy")])
    first.close()
    first.cluster.close()
    second = open_trainer(folder, ranks=1)
    for rank, name in ((4, "lora"), (0, "full")):
        second.load(run_of(rank, name), str(tmp_path / name), True)
        for trainer in (second, theirs):
            trainer.optim_step(name, STEP)
            trainer.forward_backward([LossRequest(name, 1, batches[4], "cross_entropy")])
            assert trainer.optim_step(name, STEP)["step"] == 4
        left, right = weights(second, tmp_path / f"2-{name}", name), weights(theirs, tmp_path / f"1-{name}", name)
        for key, value in right.items():
            np.testing.assert_allclose(left[key], value, atol=1e-5, err_msg=f"{name} {key}")
    damaged = next((tmp_path / "full" / "state").glob("*.distcp"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(RuntimeFault, match="damaged"):
        second.load(run_of(0, "full"), str(tmp_path / "full"), True)


def test_replicated_shards_bfloat16_and_prompt_scores(
    tiny_models: Any, open_trainer: Open, embedded: Open, cluster_data: Any, tmp_path: Path
) -> None:
    folder = tiny_models("qwen3", tied=True)
    theirs = embedded(folder)
    batches = [cluster_data.batch(5) for _ in range(3)]
    request = SampleRequest("r", "s", cluster_data.batch(1)[0].tokens, prompt_logprobs=True, topk_prompt_logprobs=3)
    for rank, name in ((4, "lora"), (0, "full")):
        theirs.create(run_of(rank, name))
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 0.05)):
        # Groups of one rank: gradients of the two replicas are added.
        ours = open_trainer(folder, fsdp_size=1, dtype=dtype)
        for rank, name in ((4, "lora"), (0, "full")):
            ours.create(run_of(rank, name))
            for batch in batches:
                for trainer in (ours, theirs) if dtype == "float32" else (ours,):
                    trainer.forward_backward([LossRequest(name, 1, batch, "cross_entropy")])
                    trainer.optim_step(name, STEP)
            final = LossRequest(name, 1, batches[0], "cross_entropy", forward_only=True)
            got, expected = (result(trainer.forward_backward([final])[0]) for trainer in (ours, theirs))
            assert got.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=tolerance)
        ours.save("lora", str(tmp_path / dtype), "sampler")
        scores = ours.score(request, str(tmp_path / dtype))
        datum = Datum(request.tokens[:-1], {"target_tokens": request.tokens[1:].astype(np.int64)})
        scored = result(
            theirs.forward_backward([LossRequest("lora", 1, [datum], "cross_entropy", forward_only=True)])[0]
        )
        np.testing.assert_allclose(
            scores.prompt_logprobs[1:], scored.outputs[0]["logprobs"], atol=max(tolerance * 4, 1e-5)
        )
        assert scores.topk_prompt_logprobs.token_ids.shape == (len(request.tokens), 3)
        ours.close()
        ours.cluster.close()
