"""The budget of a rollout: the one place where its numbers are set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from setting_error import SettingError


@dataclass(frozen=True)
class Budget:
    """The rollout budget: the one place where these numbers are set. Tokens, characters, turns and seconds."""

    max_input: int
    max_output: int
    context: int
    observation_characters: int
    last_observations: int
    turns: int
    temperature: float
    agent_seconds: int
    job_seconds: int

    def check(self) -> None:
        """Raises SettingError when input and output do not fit the context."""
        if self.max_input + self.max_output > self.context:
            raise SettingError(
                f"--max-input-tokens {self.max_input} plus --max-output-tokens {self.max_output} exceed --context {self.context}; "
                "lower one of the first two or raise the last"
            )


BUDGETS = {
    "gpu": Budget(32768, 8192, 65536, 12000, 8, 32, 1.0, 1200, 1800),
    # SmolLM2's context is 8192; the rest keeps a rollout within minutes on two cores.
    "local": Budget(7168, 256, 8192, 2000, 8, 6, 1.0, 480, 900),
}


def spend(kwargs: dict[str, Any], budget: Budget) -> None:
    """Writes the budget into the agent's options; each of them is text or number as the template has it."""
    values: dict[str, Any] = {
        "max_input_tokens": budget.max_input,
        "max_output_tokens": budget.max_output,
        "max_observation_length": budget.observation_characters,
        "last_n_observations": budget.last_observations,
        "step_limit": budget.turns,
        # SWE-agent lets one call more out than this limit says.
        "per_instance_call_limit": budget.turns - 1,
        "temperature": budget.temperature,
    }
    for name, value in values.items():
        if name in kwargs:
            kwargs[name] = str(value) if isinstance(kwargs[name], str) else value
    if isinstance(kwargs.get("completion_kwargs"), dict):
        kwargs["completion_kwargs"]["max_tokens"] = budget.max_output
