"""Training scripts of one's own on the functions of ``rl.train`` and ``preference.train_dpo``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_rl_train import BAD, GOOD, STOP, Questions, config

import tinker
from tinker_cookbook.checkpoint_utils import CheckpointManager
from tinker_cookbook.rl import train
from tinker_cookbook.rl.types import TrajectoryGroup
from tinker_cookbook.utils import ml_log
from tinker_cookbook.utils.cost_estimation import CostTracker


@pytest.fixture
def service(fake_service: Any) -> Any:
    fake_service.allowed = np.asarray([GOOD, BAD, STOP])
    return fake_service


async def clients(path: Path, save_every: int = 0) -> tuple[Any, Any, CheckpointManager]:
    service_client = tinker.ServiceClient()
    training_client = await service_client.create_lora_training_client("tiny", rank=4)
    return service_client, training_client, CheckpointManager(training_client, service_client, path, save_every)


def column(path: Path, key: str) -> list[float]:
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [row[key] for row in found if key in row]


async def test_a_loop_of_ones_own_learns_and_saves(service: Any, tmp_path: Path) -> None:
    cfg = config(tmp_path, save_every=2, num_substeps=2)
    _, training_client, checkpoints = await clients(tmp_path, save_every=2)
    cost, rewards = CostTracker(), []
    sampler, metrics = await train.save_checkpoint_and_get_sampling_client(training_client, checkpoints, 0)
    for step in range(4):
        builders = Questions(4, 4, 8).get_batch(step)
        groups = await train.gather_with_progress(
            (train.do_group_rollout_and_filter_constant_reward(sampler, b, 1, 1.0, False) for b in builders), "sampling"
        )
        data, metrics, usage = await train.prepare_minibatch(builders, groups, None, None, 0.0, 0.0, False)
        rewards.append(metrics["env/all/reward/total"])
        logprobs = await train.train_step(data, training_client, 0.3, 1, "importance_sampling", None, metrics)
        assert len(logprobs) == len(data) == 32 and usage.sampled == 32
        sampler, closing = await train.compute_full_batch_metrics_and_get_sampling_client(
            training_client, checkpoints, step + 1, data, logprobs, True, False, usage, cost
        )
        assert abs(closing["optim/kl_sample_train_v1"]) < 1e-4 and "kl_pre_post_v1" in closing
    assert rewards[-1] > rewards[0] + 0.2
    assert closing["tokens/cumulative/sampled"] == 4 * (32 + 32)  # each datum is also scored after the step
    names = [json.loads(line)["name"] for line in (tmp_path / "checkpoints.jsonl").read_text().splitlines()]
    assert names == ["000002", "000004"]
    sampler, metrics = await train.do_train_step_and_get_sampling_client(
        cfg, 4, training_client, checkpoints, None, None, builders, groups, cost
    )
    assert "env/all/reward/total" in metrics and sampler is not None


async def test_a_sampler_is_kept_when_nobody_samples_any_more(service: Any, tmp_path: Path) -> None:
    _, training_client, checkpoints = await clients(tmp_path, save_every=2)
    sampler, _ = await train.save_checkpoint_and_get_sampling_client(training_client, checkpoints, 0)
    reuse = train.SamplingClientReuse(sampler, asyncio.Event())
    again = train.compute_full_batch_metrics_and_get_sampling_client
    assert (await again(training_client, checkpoints, 1, [], [], False, sampling_client_reuse=reuse))[0] is not sampler
    reuse.rollout_workers_finished.set()
    assert (await again(training_client, checkpoints, 1, [], [], False, sampling_client_reuse=reuse))[0] is sampler
    assert reuse.reused
    assert (await again(training_client, checkpoints, 2, [], [], False, sampling_client_reuse=reuse))[0] is not sampler


LOOPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sync": (train.do_sync_training, {}),
    "stream": (
        train.do_sync_training_with_stream_minibatch,
        {"stream_minibatch_config": train.StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2)},
    ),
    "async": (train.do_async_training, {"async_config": train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=4)}),
}


@pytest.mark.parametrize("mode", sorted(LOOPS))
async def test_each_loop_as_a_function_gives_the_numbers_of_the_whole_run(
    mode: str, service: Any, tmp_path: Path
) -> None:
    loop, changes = LOOPS[mode]
    await train.main(config(tmp_path / "main", **changes))
    cfg = config(tmp_path / "own", **changes)
    logger = ml_log.setup_logging(cfg.log_path, config=cfg)
    _, training_client, checkpoints = await clients(Path(cfg.log_path))
    await loop(
        0,
        6,
        6,
        cfg,
        training_client,
        None,
        [],
        Questions(6, 4, 8),
        logger,
        training_client.get_tokenizer(),
        checkpoint_mgr=checkpoints,
    )
    logger.close()
    for key in ("env/all/reward/total", "progress/done_frac", "tokens/cumulative/trained"):
        own, whole = column(tmp_path / "own", key), column(tmp_path / "main", key)
        assert len(own) == 6
        if mode != "stream" or key != "env/all/reward/total":  # groups train in the order in which they finish
            np.testing.assert_allclose(own, whole, rtol=1e-6)


async def test_dropped_groups_are_counted_and_logged_while_a_step_is_long(service: Any, tmp_path: Path) -> None:
    _, training_client, checkpoints = await clients(tmp_path)
    sampler, _ = await train.save_checkpoint_and_get_sampling_client(training_client, checkpoints, 0)
    (builder,) = Questions(1, 1, 4).get_batch(0)
    group = await train.do_group_rollout_and_filter_constant_reward(sampler, builder, 1, 1.0, False)
    assert isinstance(group, TrajectoryGroup)
    group.final_rewards_G = [-reward for reward in group.get_total_rewards()]  # all totals are 0 now
    cost, now = CostTracker(), [0.0]
    logger = ml_log.JsonLogger(tmp_path)
    log = train.DiscardedWorkLog(cost, logger, interval_seconds=10, clock=lambda: now[0])
    keeps, drops = config(tmp_path), config(tmp_path, remove_constant_reward_groups=True)
    assert train.drop_constant_reward_group(group, keeps, cost, log) is group
    assert train.drop_constant_reward_group(None, drops, cost, log) is None
    assert cost.discarded.sampled == 0
    assert train.drop_constant_reward_group(group, drops, cost, log, 3) is None
    assert not (tmp_path / "metrics.jsonl").exists() or not column(tmp_path, "tokens/discarded/sampled")
    now[0] = 11.0
    assert train.drop_constant_reward_group(group, drops, cost, log, 3) is None
    assert cost.discarded.sampled == 8 and column(tmp_path, "tokens/discarded/sampled") == [8.0]
