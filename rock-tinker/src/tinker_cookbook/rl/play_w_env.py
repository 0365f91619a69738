"""A person plays an environment, to see what a model would see."""

from __future__ import annotations

import chz

import tinker
from tinker_cookbook import cli_utils, model_info, renderers, tokenizer_utils
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Env, Trajectory
from tinker_cookbook.tokenizer_utils import Tokenizer


async def get_async_input(prompt: str, multiline: bool = False) -> str:
    """A line (or, with ``multiline``, lines up to an empty one) from the terminal."""
    if not multiline:
        return await cli_utils.ask(prompt)
    lines: list[str] = []
    while line := await cli_utils.ask(prompt if not lines else ""):
        lines.append(line)
    return "\n".join(lines)


class ManualPolicy(TokenCompleter):
    """Asks a person for each action."""

    def __init__(self, tokenizer: Tokenizer, multiline: bool = True, show_observation: bool = True) -> None:
        self.tokenizer, self.multiline, self.show_observation = tokenizer, multiline, show_observation
        self._shown = 0

    async def __call__(
        self, ob: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        tokens = ob.to_ints()
        if self.show_observation:
            print(self.tokenizer.decode(tokens[self._shown :]))
        text = await get_async_input("your action> ", self.multiline)
        action = list(self.tokenizer.encode(text, add_special_tokens=False))
        if stop and isinstance(stop[0], int):
            action.append(int(stop[0]))
        elif stop:
            action += list(self.tokenizer.encode(str(stop[0]), add_special_tokens=False))
        self._shown = len(tokens) + len(action)
        return TokensWithLogprobs(action, [0.0] * len(action))


def print_trajectory_summary(trajectory: Trajectory) -> None:
    """Rewards and metrics of an episode."""
    total = sum(turn.reward for turn in trajectory.transitions)
    ended = f", ended by {trajectory.stop_reason}" if trajectory.stop_reason else ""
    print(f"{len(trajectory.transitions)} turns, reward {total:.3f}{ended}")
    for turn in trajectory.transitions:
        print(f"  reward {turn.reward:.3f} {turn.metrics}")


async def play_env(env: Env, tokenizer: Tokenizer, multiline: bool = True, show_observation: bool = True) -> Trajectory:
    """Play an episode."""
    trajectory = await do_single_rollout(ManualPolicy(tokenizer, multiline, show_observation), env)
    print_trajectory_summary(trajectory)
    return trajectory


@chz.chz
class Config:
    """``game``: guess_number or arithmetic."""

    game: str = "guess_number"
    model_name: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    renderer_name: str | None = None
    largest: int = 100
    multiline: bool = False


async def main(config: Config | None = None) -> None:
    """Play a game; without a configuration, the default one."""
    config = config or Config()
    from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDataset
    from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberGroupBuilder

    tokenizer = tokenizer_utils.get_tokenizer(config.model_name)
    name = config.renderer_name or model_info.get_recommended_renderer_name(config.model_name)
    renderer = renderers.get_renderer(name, tokenizer)
    if config.game == "guess_number":
        env = (await GuessNumberGroupBuilder(config.largest // 3, renderer, 1, config.largest).make_envs())[0]
    elif config.game == "arithmetic":
        dataset = ArithmeticDataset(1, 1, renderer, 1, largest=config.largest)
        env = (await dataset.get_batch(0)[0].make_envs())[0]
    else:
        raise ConfigurationError(f"game={config.game!r} is unknown; use guess_number or arithmetic")
    try:
        await play_env(env, tokenizer, config.multiline)
    except EOFError:
        print()


if __name__ == "__main__":
    from tinker_cookbook.recipes import entry

    entry.run(main)
