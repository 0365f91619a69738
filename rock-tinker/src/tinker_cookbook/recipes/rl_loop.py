"""Reinforcement learning as one plain loop: sample groups, centre rewards, step.

python -m tinker_cookbook.recipes.rl_loop model_name=... env=arithmetic batch_size=8 group_size=8 max_tokens=5
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import chz
import numpy as np

import tinker
from tinker_cookbook import checkpoint_utils, cli_utils, model_info
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.math_rl import train as math_rl
from tinker_cookbook.rl.problem_env import ProblemEnv
from tinker_cookbook.utils import ml_log

logger = logging.getLogger(__name__)


@chz.chz
class Config:
    """``env``: gsm8k or any other environment of math_rl."""

    base_url: str | None = None
    log_path: str = cli_utils.runs_path("rl-loop")
    model_name: str = "Qwen/Qwen3.5-9B-Base"
    batch_size: int = 128
    group_size: int = 16
    learning_rate: float = 4e-5
    lora_rank: int = 32
    save_every: int = 20
    max_tokens: int = 256
    loss_fn: str = "importance_sampling"
    ttl_seconds: int | None = 604800
    max_steps: int | None = None
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    env: str = "gsm8k"
    renderer_name: str | None = None


async def sample_group(
    sampler: tinker.SamplingClient, env: ProblemEnv, config: Config
) -> tuple[list[tinker.Datum], list[float]]:
    """Data and rewards of several answers to one question. No data when all rewards are equal."""
    prompt, stop = await env.initial_observation()
    params = tinker.SamplingParams(max_tokens=config.max_tokens, stop=stop, temperature=1.0)
    response = await sampler.sample(prompt=prompt, num_samples=config.group_size, sampling_params=params)
    rewards = [(await env.step(list(sequence.tokens))).reward for sequence in response.sequences]
    advantages = np.asarray(rewards) - np.mean(rewards)
    if not advantages.any():
        return [], rewards
    data = []
    for sequence, advantage in zip(response.sequences, advantages, strict=True):
        tokens, before = list(sequence.tokens), prompt.length - 1
        whole = [*prompt.to_ints(), *tokens]
        arrays: dict[str, Any] = {
            "target_tokens": np.asarray(whole[1:], dtype=np.int64),
            "logprobs": np.asarray([0.0] * before + list(sequence.logprobs or []), dtype=np.float32),
            "advantages": np.asarray([0.0] * before + [advantage] * len(tokens), dtype=np.float32),
        }
        inputs = {key: tinker.TensorData.from_numpy(value) for key, value in arrays.items()}
        data.append(tinker.Datum(model_input=tinker.ModelInput.from_ints(whole[:-1]), loss_fn_inputs=inputs))
    return data, rewards


async def main(config: Config) -> None:
    """Train; go on from the last checkpoint in ``log_path`` if there is one."""
    log = ml_log.setup_logging(config.log_path, config.wandb_project, config.wandb_name, config)
    name = config.renderer_name or model_info.get_recommended_renderer_name(config.model_name)
    cli = math_rl.CLIConfig(
        model_name=config.model_name, env=config.env, groups_per_batch=config.batch_size, group_size=1
    )
    dataset, _ = await math_rl.get_dataset_builder(cli, name)()
    total = len(dataset) if config.max_steps is None else min(len(dataset), config.max_steps)
    with tinker.ServiceClient(base_url=config.base_url, display_name=config.session_name) as service:
        resume = checkpoint_utils.get_last_checkpoint(config.log_path)
        client = await checkpoint_utils.open_training_client(
            service,
            model_name=config.model_name,
            lora_rank=config.lora_rank,
            resume_from=resume,
            load_checkpoint_path=None,
            renderer_name=name,
        )
        params = tinker.AdamParams(learning_rate=config.learning_rate, beta1=0.9, beta2=0.95, eps=1e-8)
        start = (resume.batch or 0) if resume is not None else 0
        if start and log.store is not None:
            log.store.truncate_metrics(start)
        for step in range(start, total):
            if config.save_every and step > start and step % config.save_every == 0:
                await checkpoint_utils.save_checkpoint_async(
                    client, f"{step:06d}", config.log_path, {"batch": step}, "state", config.ttl_seconds
                )
            sampler = await client.save_weights_and_get_sampling_client()
            envs: list[Any] = [(await builder.make_envs())[0] for builder in dataset.get_batch(step)]
            groups = await asyncio.gather(*(sample_group(sampler, env, config) for env in envs))
            data = [datum for group, _ in groups for datum in group]
            rewards = [reward for _, group_rewards in groups for reward in group_rewards]
            if data:
                forward_backward = client.forward_backward(data, cast(tinker.types.LossFnType, config.loss_fn))
                optim = client.optim_step(params)
                await forward_backward
                await optim
            metrics = {"reward/mean": float(np.mean(rewards)), "num_datums": len(data), "progress": (step + 1) / total}
            log.log_metrics(metrics, step=step)
        await checkpoint_utils.save_checkpoint_async(
            client, "final", config.log_path, {"batch": total, "final": True}, "both"
        )
    log.close()


if __name__ == "__main__":
    entry.run(main)
