"""Groups and datasets of DeepCoder problems."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import chz
import numpy as np

from tinker_cookbook import model_info, renderers, tokenizer_utils
from tinker_cookbook.recipes.code_rl.code_grading import runner_of
from tinker_cookbook.recipes.code_rl.deepcoder_tool import DeepcoderTask
from tinker_cookbook.recipes.code_rl.env import CodeGroupBuilder, load_problems
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.sandbox import SandboxBackend


def load_deepcoder_tasks(split: str = "train", seed: int = 0) -> list[DeepcoderTask]:
    """The problems of a split in a random order that follows from the seed.

    Raises:
        ConfigurationError: the data cannot be loaded.
    """
    problems = load_problems("deepcoder", split)
    order = np.random.default_rng(seed).permutation(len(problems))
    return [
        DeepcoderTask(
            problems[int(i)].question,
            [{"input": given, "output": expected} for given, expected in problems[int(i)].tests],
        )
        for i in order
    ]


@chz.chz
class DeepcoderEnvGroupBuilder(EnvGroupBuilder):
    """Several attempts at one problem, each with the tool ``check_solution``. ``timeout``: seconds for each test."""

    task: DeepcoderTask
    model_name: str
    renderer_name: str | None
    max_turns: int
    group_size: int
    sandbox_backend: SandboxBackend | None
    timeout: int = 6
    format_coef: float = 0.1
    max_trajectory_tokens: int = 32 * 1024
    max_generation_tokens: int | None = None
    context_overflow_reward: float = -0.1

    async def make_envs(self) -> Sequence[Env]:
        name = self.renderer_name or model_info.get_recommended_renderer_name(self.model_name)
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name)
        renderer = renderers.get_renderer(name, tokenizer, model_name=self.model_name)
        group = CodeGroupBuilder(
            self.task.as_problem(),
            runner_of(self.sandbox_backend),
            renderer,
            self.group_size,
            self.max_turns,
            self.format_coef,
            self.max_trajectory_tokens,
            self.max_generation_tokens,
            self.context_overflow_reward,
            self.timeout,
        )
        return await group.make_envs()

    def logging_tags(self) -> list[str]:
        return ["deepcoder"]


class DeepcoderDataset(RLDataset):
    """Groups in batches; the last one may be smaller."""

    def __init__(self, env_group_builders: list[DeepcoderEnvGroupBuilder], batch_size: int) -> None:
        self.env_group_builders, self.batch_size = env_group_builders, batch_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.env_group_builders[index * self.batch_size : (index + 1) * self.batch_size]

    def __len__(self) -> int:
        return -(-len(self.env_group_builders) // self.batch_size)


@chz.chz
class DeepcoderDatasetBuilder(RLDatasetBuilder):
    """Training and test problems of DeepCoder; programs run in a ``/run_code`` service (``SANDBOX_URL``)."""

    model_name_for_tokenizer: str
    batch_size: int
    group_size: int
    renderer_name: str | None = None
    max_turns: int = 2
    format_coef: float = 0.1
    timeout: int = 6
    sandbox_backend: SandboxBackend | None = None
    seed: int = 0
    max_generation_tokens: int | None = None
    context_overflow_reward: float = -0.1

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        train, test = [
            DeepcoderDataset(
                [self._group(task, size) for task in await asyncio.to_thread(load_deepcoder_tasks, split, self.seed)],
                self.batch_size,
            )
            for split, size in (("train", self.group_size), ("test", 1))
        ]
        return train, test

    def _group(self, task: DeepcoderTask, group_size: int) -> DeepcoderEnvGroupBuilder:
        return DeepcoderEnvGroupBuilder(
            task=task,
            model_name=self.model_name_for_tokenizer,
            renderer_name=self.renderer_name,
            max_turns=self.max_turns,
            group_size=group_size,
            sandbox_backend=self.sandbox_backend,
            timeout=self.timeout,
            format_coef=self.format_coef,
            max_generation_tokens=self.max_generation_tokens,
            context_overflow_reward=self.context_overflow_reward,
        )
