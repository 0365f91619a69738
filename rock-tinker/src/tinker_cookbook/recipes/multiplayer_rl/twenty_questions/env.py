"""Twenty questions: a second model answers yes or no."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chz
import numpy as np

import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.completers import MessageCompleter, TinkerMessageCompleter
from tinker_cookbook.recipes.multiplayer_rl.game_env import GameEnv
from tinker_cookbook.renderers import Message, get_text_content
from tinker_cookbook.rl.message_env import MessageEnv, MessageStepResult
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder

MAX_QUESTIONS = 20
PLAYER_PROMPT = (
    "You are playing twenty questions. I think of an object, and you find out what it is by asking questions that can be "
    "answered with yes or no. When you think that you know it, write: Guess: <object>"
)
ANSWERER_PROMPT = (
    "You know the secret object of a guessing game: {word}. Answer the question about it with one word, yes or no."
)


class TwentyQuestionsEnv(MessageEnv):
    """Reward 1 when the object is guessed."""

    def __init__(self, word: str, answerer: MessageCompleter) -> None:
        self.word, self.answerer = word, answerer
        self.messages: list[Message] = []
        self.turns = 0

    async def initial_observation(self) -> list[Message]:
        self.messages = [
            Message(role="system", content=PLAYER_PROMPT),
            Message(role="user", content="I have thought of an object. Ask your first question."),
        ]
        return self.messages

    async def _reply(self, text: str) -> tuple[str, bool]:
        guess = re.search(r"Guess:\s*(.+)", text)
        if guess is not None:
            words = re.findall(r"[a-z]+", guess.group(1).lower())
            return ("Correct", True) if self.word.lower() in words else ("No, that is not it.", False)
        answer = await self.answerer(
            [
                Message(role="system", content=ANSWERER_PROMPT.format(word=self.word)),
                Message(role="user", content=text),
            ]
        )
        return ("Yes" if get_text_content(answer).strip().lower().startswith("yes") else "No"), False

    async def step(self, message: Message) -> MessageStepResult:
        self.turns += 1
        reply, solved = await self._reply(get_text_content(message))
        self.messages += [message, Message(role="user", content=reply)]
        done = solved or self.turns >= MAX_QUESTIONS
        return MessageStepResult(float(solved), done, list(self.messages), {"solved": solved})


@dataclass(frozen=True)
class TwentyQuestionsGroupBuilder(EnvGroupBuilder):
    """Several games with one object."""

    word: str
    answerer: MessageCompleter
    renderer: renderers.Renderer
    num_envs: int

    async def make_envs(self) -> Sequence[Env]:
        return [GameEnv(self.renderer, TwentyQuestionsEnv(self.word, self.answerer)) for _ in range(self.num_envs)]

    def logging_tags(self) -> list[str]:
        return ["twenty_questions"]


class TwentyQuestionsDataset(RLDataset):
    """Objects in batches."""

    def __init__(
        self,
        words: list[str],
        answerer: MessageCompleter,
        renderer: renderers.Renderer,
        batch_size: int,
        group_size: int,
    ) -> None:
        self.words, self.answerer, self.renderer = words, answerer, renderer
        self.batch_size, self.group_size = batch_size, group_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        rows = self.words[index * self.batch_size : (index + 1) * self.batch_size]
        return [TwentyQuestionsGroupBuilder(word, self.answerer, self.renderer, self.group_size) for word in rows]

    def __len__(self) -> int:
        return max(len(self.words) // self.batch_size, 1)


@chz.chz
class TwentyQuestionsDatasetBuilder(RLDatasetBuilder):
    """Common nouns, ``num_epochs`` times in new order; a fifth is held out."""

    batch_size: int
    group_size: int
    renderer_name: str
    model_name_for_tokenizer: str
    answerer_model_name: str
    answerer_renderer_name: str
    num_epochs: int = 1
    seed: int = 0
    base_url: str | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        client = await tinker.ServiceClient(base_url=self.base_url).create_sampling_client(
            base_model=self.answerer_model_name
        )
        answerer_tokenizer = await asyncio.to_thread(tokenizer_utils.get_tokenizer, self.answerer_model_name)
        answerer = TinkerMessageCompleter(
            client, renderers.get_renderer(self.answerer_renderer_name, answerer_tokenizer), max_tokens=5
        )
        words = (Path(__file__).parent / "nouns.txt").read_text().split()
        rng = np.random.default_rng(self.seed)
        words = [words[int(i)] for i in rng.permutation(len(words))]
        held_out = len(words) // 5
        pool = words[held_out:]
        train = [pool[int(i)] for _ in range(self.num_epochs) for i in rng.permutation(len(pool))]
        dataset = TwentyQuestionsDataset(train, answerer, renderer, self.batch_size, self.group_size)
        return dataset, TwentyQuestionsDataset(words[:held_out], answerer, renderer, held_out, 1)
