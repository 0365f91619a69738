"""Prompts for distillation, and mixtures of datasets that each have a teacher."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import chz

import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    Trajectory,
)
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils.file_utils import read_jsonl


@chz.chz
class TeacherConfig:
    """A teacher: a base model, or a checkpoint of it."""

    base_model: str
    load_checkpoint_path: str | None = None


@chz.chz
class DistillationDatasetConfig:
    """A dataset, its teacher, and how many of its groups are in each batch."""

    dataset_builder: RLDatasetBuilder
    teacher_config: TeacherConfig
    groups_per_batch: int


class TaggedGroupBuilder(EnvGroupBuilder):
    """A group builder that knows which dataset it comes from."""

    def __init__(self, builder: EnvGroupBuilder, dataset_index: int) -> None:
        self.builder, self.dataset_index = builder, dataset_index

    async def make_envs(self) -> Sequence[Env]:
        return await self.builder.make_envs()

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        return await self.builder.compute_group_rewards(trajectory_group, env_group)

    async def cleanup(self) -> None:
        await self.builder.cleanup()

    def logging_tags(self) -> list[str]:
        return self.builder.logging_tags()


class CompositeDataset:
    """Each batch holds groups of every dataset; as long as the shortest one."""

    def __init__(self, datasets: list[RLDataset], groups_per_batch_list: list[int]) -> None:
        self.datasets, self.groups_per_batch_list = datasets, groups_per_batch_list

    def get_batch(self, i_batch: int) -> tuple[list[EnvGroupBuilder], list[int]]:
        """Groups of a batch, and the number of the dataset that each comes from."""
        rows = [
            (builder, number) for number, dataset in enumerate(self.datasets) for builder in dataset.get_batch(i_batch)
        ]
        return [builder for builder, _ in rows], [number for _, number in rows]

    def __len__(self) -> int:
        return min(len(dataset) for dataset in self.datasets)


class TaggedDataset(RLDataset):
    """A mixture whose groups know which dataset they come from."""

    def __init__(self, mixture: CompositeDataset) -> None:
        self._mixture = mixture

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [TaggedGroupBuilder(*row) for row in zip(*self._mixture.get_batch(index), strict=True)]

    def __len__(self) -> int:
        return len(self._mixture)


@chz.chz
class CompositeDatasetBuilder(RLDatasetBuilder):
    """Builder of a mixture."""

    configs: list[DistillationDatasetConfig]

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        built = [await config.dataset_builder() for config in self.configs]
        groups = [config.groups_per_batch for config in self.configs]
        tests = [test for _, test in built if test is not None]
        mixture = CompositeDataset([train for train, _ in built], groups)
        return TaggedDataset(mixture), tests[0] if tests else None


class PromptOnlyEnv(ProblemEnv):
    """A prompt without reward: what is learnt comes from the teacher."""

    def __init__(self, prompt: str, renderer: renderers.Renderer, convo_prefix: list[Message] | None = None) -> None:
        super().__init__(renderer, convo_prefix)
        self.prompt = prompt

    def get_question(self) -> str:
        return self.prompt

    def check_format(self, sample_str: str) -> bool:
        return True

    def check_answer(self, sample_str: str) -> bool:
        return False

    def get_reference_answer(self) -> str:
        return ""

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        return StepResult(0.0, True, tinker.ModelInput.empty(), self.stop_condition)


class PromptOnlyDataset(RLDataset):
    """Prompts in batches; ``max_prompt_tokens`` cuts long ones."""

    def __init__(
        self,
        prompts: list[str],
        batch_size: int,
        group_size: int,
        renderer: renderers.Renderer,
        tokenizer: Tokenizer,
        max_prompt_tokens: int | None = None,
        convo_prefix: list[Message] | None = None,
        dataset_name: str = "prompts",
    ) -> None:
        self.prompts, self.batch_size, self.group_size = prompts, batch_size, group_size
        self.renderer, self.tokenizer, self.convo_prefix = renderer, tokenizer, convo_prefix
        self.max_prompt_tokens, self.dataset_name = max_prompt_tokens, dataset_name

    def _cut(self, prompt: str) -> str:
        if self.max_prompt_tokens is None:
            return prompt
        tokens = self.tokenizer.encode(prompt, add_special_tokens=False)
        kept = tokens[: self.max_prompt_tokens]
        return prompt if len(kept) == len(tokens) else str(self.tokenizer.decode(kept))

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        rows = self.prompts[index * self.batch_size : (index + 1) * self.batch_size]
        return [
            ProblemGroupBuilder(
                env_thunk=partial(PromptOnlyEnv, self._cut(row), self.renderer, self.convo_prefix),
                num_envs=self.group_size,
                dataset_name=self.dataset_name,
            )
            for row in rows
        ]

    def __len__(self) -> int:
        return math.ceil(len(self.prompts) / self.batch_size)


def load_deepmath_prompts(split: Literal["train", "test"] = "train") -> list[str]:
    """Questions of DeepMath-103K; the first 256 are held out as "test"."""
    import datasets

    rows = datasets.load_dataset("zwhe99/DeepMath-103K", split="train")
    questions = [str(row["question"]) for row in rows]
    return questions[256:] if split == "train" else questions[:256]


def load_tulu3_prompts() -> list[str]:
    """First user messages of the Tulu 3 mixture."""
    import datasets

    rows = datasets.load_dataset("allenai/tulu-3-sft-mixture", split="train")
    firsts = (next((m["content"] for m in row["messages"] if m["role"] == "user"), "") for row in rows)
    return [text for text in firsts if text]


_SOURCES: dict[str, Callable[[], list[str]]] = {"deepmath": load_deepmath_prompts, "tulu3": load_tulu3_prompts}


def load_prompts(dataset_name: str) -> list[str]:
    """Prompts of a known dataset, or of a JSONL file with the field ``prompt`` (or ``messages``)."""
    if dataset_name in _SOURCES:
        return _SOURCES[dataset_name]()
    if dataset_name.endswith(".jsonl"):
        return [_prompt(row, dataset_name) for row in read_jsonl(dataset_name)]
    raise ConfigurationError(
        f"dataset={dataset_name!r} is unknown; use {', '.join(_SOURCES)} or a path that ends in .jsonl"
    )


def _prompt(row: dict[str, Any], where: str) -> str:
    if "prompt" in row:
        return str(row["prompt"])
    for message in row.get("messages", []):
        if message.get("role") == "user":
            return str(message["content"])
    raise ConfigurationError(f"{where}: rows need the field 'prompt' or 'messages'; fields: {sorted(row)}")


@chz.chz
class PromptOnlyDatasetBuilder(RLDatasetBuilder):
    """Prompts of a dataset for one student."""

    dataset_name: str
    groups_per_batch: int
    group_size: int
    model_name_for_tokenizer: str
    renderer_name: str
    convo_prefix: list[Message] | None = None
    max_prompt_tokens: int | None = 1024

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        dataset = PromptOnlyDataset(
            load_prompts(self.dataset_name),
            self.groups_per_batch,
            self.group_size,
            renderer,
            tokenizer,
            self.max_prompt_tokens,
            self.convo_prefix,
            self.dataset_name,
        )
        return dataset, None
