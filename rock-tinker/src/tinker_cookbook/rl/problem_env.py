"""Environments with one question and one answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tinker
from tinker_cookbook import renderers
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    Observation,
    StepResult,
    Trajectory,
)
from tinker_cookbook.utils import logtree


class ProblemEnv(Env):
    """Reward: ``format_coef * (format − 1) + correct``, where the format also needs the stop sequence.

    ``require_stop_sequence_for_format`` False: an answer that ends with the end-of-sequence token has the format too.
    """

    def __init__(
        self,
        renderer: renderers.Renderer,
        convo_prefix: list[Message] | None = None,
        format_coef: float = 0.1,
        require_stop_sequence_for_format: bool = True,
    ) -> None:
        self.renderer = renderer
        self.convo_prefix = convo_prefix or []
        self.format_coef = format_coef
        self.require_stop_sequence_for_format = require_stop_sequence_for_format

    @property
    def stop_condition(self) -> StopCondition:
        """Where the answer ends."""
        return self.renderer.get_stop_sequences()

    @abstractmethod
    def get_question(self) -> str:
        """Text of the user message."""

    @abstractmethod
    def check_answer(self, sample_str: str) -> bool:
        """Whether an answer is right."""

    @abstractmethod
    def check_format(self, sample_str: str) -> bool:
        """Whether an answer has the form asked for."""

    @abstractmethod
    def get_reference_answer(self) -> str:
        """The right answer, for reports."""

    def _messages(self) -> list[Message]:
        return [*self.convo_prefix, Message(role="user", content=self.get_question())]

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        return self.renderer.build_generation_prompt(self._messages()), self.stop_condition

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        message, termination = self.renderer.parse_response(action)
        text = renderers.get_text_content(message)
        ended = termination.is_stop_sequence if self.require_stop_sequence_for_format else termination.is_clean
        format_ok = float(ended and self.check_format(text))
        correct = float(self.check_answer(text))
        reward = self.format_coef * (format_ok - 1) + correct
        with logtree.scope_header("Episode"):
            logtree.log_text(f"Question: {self.get_question()}")
            logtree.log_text(f"Answer: {text}")
            logtree.log_text(
                f"Reference: {self.get_reference_answer()} | format {bool(format_ok)}, correct {bool(correct)}, "
                f"reward {reward:.2f}"
            )
        return StepResult(
            reward=reward,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=self.stop_condition,
            metrics={"format": format_ok, "correct": correct},
            logs={"question": self.get_question(), "answer": text, "reference": self.get_reference_answer()},
        )


@dataclass(frozen=True)
class ProblemGroupBuilder(EnvGroupBuilder):
    """``num_envs`` attempts at one problem."""

    env_thunk: Callable[[], ProblemEnv]
    num_envs: int
    dataset_name: str = "problems"

    async def make_envs(self) -> Sequence[Env]:
        return [self.env_thunk() for _ in range(self.num_envs)]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        return [(0.0, {}) for _ in trajectory_group]

    def logging_tags(self) -> list[str]:
        return [self.dataset_name]
