"""Guess a number: the environment answers "too high" or "too low"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import chz
import numpy as np

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.recipes.multiplayer_rl.game_env import GameEnv
from tinker_cookbook.renderers import Message, get_text_content
from tinker_cookbook.rl.message_env import MessageEnv, MessageStepResult
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder

MAX_TURNS = 10


def system_prompt(largest: int) -> str:
    """Rules of the game."""
    return (
        f"You are playing a game. I think of a whole number between 0 and {largest}, and you guess it. After each guess "
        "I say whether it was too high or too low. Answer with one line of this form:\nGuess: <number>"
    )


class GuessNumberEnv(MessageEnv):
    """Reward 1 for the right guess within ten turns, -1 for each one that cannot be read, else 0."""

    def __init__(self, answer: int, largest: int = 1024) -> None:
        self.answer, self.largest = answer, largest
        self.messages: list[Message] = []
        self.turns = 0

    async def initial_observation(self) -> list[Message]:
        self.messages = [
            Message(role="system", content=system_prompt(self.largest)),
            Message(role="user", content="I have thought of a number. Make your first guess."),
        ]
        return self.messages

    def _reply(self, text: str) -> str:
        match = re.match(r"Guess:\s+(-?\d+)\s*$", text, flags=re.MULTILINE)
        if match is None:
            return "I could not read that. Use the form 'Guess: <number>'."
        guess = int(match.group(1))
        if guess == self.answer:
            return "Correct"
        return "Too low" if guess < self.answer else "Too high"

    async def step(self, message: Message) -> MessageStepResult:
        self.turns += 1
        reply = self._reply(get_text_content(message))
        self.messages += [message, Message(role="user", content=reply)]
        solved = reply == "Correct"
        done = solved or self.turns >= MAX_TURNS
        readable = float(not reply.startswith("I could not"))
        reward = float(solved) if readable else -1.0
        return MessageStepResult(reward, done, list(self.messages), {"solved": solved, "readable": readable})


@dataclass(frozen=True)
class GuessNumberGroupBuilder(EnvGroupBuilder):
    """Several games with one number."""

    answer: int
    renderer: renderers.Renderer
    num_envs: int
    largest: int = 1024

    async def make_envs(self) -> Sequence[Env]:
        return [GameEnv(self.renderer, GuessNumberEnv(self.answer, self.largest)) for _ in range(self.num_envs)]

    def logging_tags(self) -> list[str]:
        return ["guess_number"]


class GuessNumberDataset(RLDataset):
    """Numbers in batches."""

    def __init__(
        self, answers: Sequence[int], renderer: renderers.Renderer, batch_size: int, group_size: int, largest: int
    ) -> None:
        self.answers, self.renderer, self.batch_size = list(answers), renderer, batch_size
        self.group_size, self.largest = group_size, largest

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        rows = self.answers[index * self.batch_size : (index + 1) * self.batch_size]
        return [GuessNumberGroupBuilder(answer, self.renderer, self.group_size, self.largest) for answer in rows]

    def __len__(self) -> int:
        return max(len(self.answers) // self.batch_size, 1)


@chz.chz
class GuessNumberDatasetBuilder(RLDatasetBuilder):
    """Numbers up to ``largest`` in random order; ``num_test`` are held out."""

    batch_size: int
    group_size: int
    renderer_name: str
    model_name_for_tokenizer: str
    largest: int = 1024
    num_test: int = 32
    num_batches: int = 30
    seed: int = 0

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        rng = np.random.default_rng(self.seed)
        order = [int(x) for x in rng.permutation(self.largest + 1)]
        count = min(self.num_test, max(len(order) // 4, 1))
        test, pool = order[:count], order[count:]
        train = [int(x) for x in rng.choice(pool, self.batch_size * self.num_batches)]
        dataset = GuessNumberDataset(train, renderer, self.batch_size, self.group_size, self.largest)
        return dataset, GuessNumberDataset(test, renderer, len(test), 1, self.largest)
