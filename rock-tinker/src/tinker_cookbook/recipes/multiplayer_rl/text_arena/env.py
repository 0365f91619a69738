"""Tic-tac-toe: self-play in training, a base model or a random player as the test opponent."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import chz

import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.completers import MessageCompleter, StopCondition, TinkerMessageCompleter
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message, get_text_content
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Observation,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
)

ILLEGAL_MOVE_REWARD = -2.0
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
RULES = (
    "You play tic-tac-toe as {mark}. Cells are numbered 0 to 8, row by row; three of your marks in a line win. Answer "
    "with the number of a free cell in brackets, for example [4]."
)


@dataclass
class TicTacToe:
    """The board; ``winner`` is 0, 1, or None while undecided; ``illegal`` is the player who broke the rules."""

    cells: list[int | None] = field(default_factory=lambda: [None] * 9)
    turn: int = 0
    winner: int | None = None
    illegal: int | None = None

    @property
    def over(self) -> bool:
        """Whether no more move is possible."""
        return self.winner is not None or self.illegal is not None or all(cell is not None for cell in self.cells)

    def show(self) -> str:
        """The board with numbers of free cells."""
        marks = [str(i) if cell is None else "XO"[cell] for i, cell in enumerate(self.cells)]
        return "\n".join(" | ".join(marks[row : row + 3]) for row in (0, 3, 6))

    def play(self, text: str) -> None:
        """Make the move that a text names."""
        found = re.search(r"\[\s*([0-8])\s*\]", text)
        cell = int(found.group(1)) if found else -1
        if cell < 0 or self.cells[cell] is not None:
            self.illegal = self.turn
            return
        self.cells[cell] = self.turn
        if any(all(self.cells[i] == self.turn for i in line) for line in _LINES):
            self.winner = self.turn
        self.turn = 1 - self.turn

    def reward(self, player: int) -> float:
        """Result of a finished game: 1, -1, 0 for a draw; -2 for a broken rule, which the other player is not paid."""
        if self.illegal is not None:
            return ILLEGAL_MOVE_REWARD if self.illegal == player else 0.0
        return 0.0 if self.winner is None else 1.0 if self.winner == player else -1.0


class Table:
    """A game whose players wait for one another."""

    def __init__(self) -> None:
        self.game = TicTacToe()
        self._changed = asyncio.Condition()

    async def wait_for_turn(self, player: int) -> None:
        """Until it is the player's turn, or the game is over."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.game.over or self.game.turn == player)

    async def play(self, text: str) -> None:
        """Make a move and wake the other player."""
        async with self._changed:
            self.game.play(text)
            self._changed.notify_all()


class PlayerEnv(Env):
    """One seat at a table. ``opponent`` plays the other seat if given."""

    def __init__(
        self, table: Table, player: int, renderer: renderers.Renderer, opponent: MessageCompleter | None = None
    ) -> None:
        self.table, self.player, self.renderer, self.opponent = table, player, renderer, opponent
        self.messages: list[Message] = [Message(role="system", content=RULES.format(mark="XO"[player]))]
        self._stop: StopCondition = renderer.get_stop_sequences()

    async def _next(self) -> Observation:
        if self.opponent is not None and self.table.game.turn != self.player and not self.table.game.over:
            await self._opponent_moves(self.opponent)
        await self.table.wait_for_turn(self.player)
        self.messages.append(Message(role="user", content=f"The board:\n{self.table.game.show()}"))
        return self.renderer.build_generation_prompt(self.messages)

    async def _opponent_moves(self, opponent: MessageCompleter) -> None:
        board = f"The board:\n{self.table.game.show()}"
        rules = RULES.format(mark="XO"[1 - self.player])
        answer = await opponent([Message(role="system", content=rules), Message(role="user", content=board)])
        await self.table.play(get_text_content(answer))

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        return await self._next(), self._stop

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        game = self.table.game
        if game.over:  # the other player ended the game before this one could move
            return StepResult(game.reward(self.player), True, tinker.ModelInput.empty(), self._stop)
        message, _ = self.renderer.parse_response(action)
        self.messages.append(message)
        await self.table.play(get_text_content(message))
        observation = tinker.ModelInput.empty() if game.over else await self._next()
        if not game.over:
            return StepResult(0.0, False, observation, self._stop)
        metrics = {
            "win": game.winner == self.player,
            "illegal_move": game.illegal == self.player,
            "draw": game.winner is None and game.illegal is None,
        }
        return StepResult(game.reward(self.player), True, tinker.ModelInput.empty(), self._stop, metrics)


class RandomPlayer(MessageCompleter):
    """Picks a free cell at random."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)

    async def __call__(self, messages: list[Message]) -> Message:
        free = re.findall(r"\d", get_text_content(messages[-1]))
        return Message(role="assistant", content=f"[{self._rng.choice(free)}]")


@dataclass(frozen=True)
class GameGroupBuilder(EnvGroupBuilder):
    """One game: both seats are trained, or one seat plays against ``opponent``."""

    renderer: renderers.Renderer
    opponent: MessageCompleter | None = None
    seat: int = 0

    async def make_envs(self) -> Sequence[Env]:
        table = Table()
        if self.opponent is not None:
            return [PlayerEnv(table, self.seat, self.renderer, self.opponent)]
        return [PlayerEnv(table, player, self.renderer) for player in (0, 1)]

    def logging_tags(self) -> list[str]:
        return ["tic_tac_toe"]


class GameDataset(RLDataset):
    """Games in batches; ``batch_size`` counts trajectories, so self-play makes half as many games."""

    def __init__(
        self, renderer: renderers.Renderer, batch_size: int, datapoints: int, opponent: MessageCompleter | None = None
    ) -> None:
        self.renderer, self.opponent = renderer, opponent
        self.games = batch_size if opponent is not None else max(batch_size // 2, 1)
        self.batches = max(datapoints // batch_size, 1)

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [GameGroupBuilder(self.renderer, self.opponent, seat=i % 2) for i in range(self.games)]

    def __len__(self) -> int:
        return self.batches


@chz.chz
class GameDatasetBuilder(RLDatasetBuilder):
    """``game_name``: TicTacToe-v0. ``test_opponent``: base_model or random."""

    game_name: str
    test_opponent: str
    batch_size: int
    num_train_datapoints: int
    num_test_datapoints: int
    renderer_name: str
    model_name: str
    max_tokens: int
    base_url: str | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        if self.game_name != "TicTacToe-v0":
            raise ConfigurationError(f"game_name={self.game_name!r} is unknown; TicTacToe-v0 comes with the package")
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name)
        opponent: MessageCompleter
        if self.test_opponent == "random":
            opponent = RandomPlayer()
        elif self.test_opponent == "base_model":
            service = tinker.ServiceClient(base_url=self.base_url)
            client = await service.create_sampling_client(base_model=self.model_name)
            opponent = TinkerMessageCompleter(client, renderer, self.max_tokens)
        else:
            raise ConfigurationError(f"test_opponent={self.test_opponent!r} is unknown; use base_model or random")
        test = GameDataset(renderer, self.num_test_datapoints, self.num_test_datapoints, opponent)
        return GameDataset(renderer, self.batch_size, self.num_train_datapoints), test
