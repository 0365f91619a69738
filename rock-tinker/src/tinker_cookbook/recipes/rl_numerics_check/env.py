"""Count a word in a document that is read page by page: episodes of many turns and tens of thousands of tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import chz

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.renderers import Message, get_text_content
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageStepResult
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, RLDataset, RLDatasetBuilder, Trajectory
from tinker_cookbook.tool_use import AgentToolMessageEnv, ToolResult, error_tool_result, simple_tool_result, tool
from tinker_cookbook.utils.file_utils import read_jsonl

NumPagesHint: TypeAlias = Literal["exact", "range"]
WordHint: TypeAlias = Literal["exact", "first_last", "hidden"]

DEFAULT_WORDS = (
    "after", "against", "although", "before", "being", "between", "both", "could", "during", "however", "including",
    "into", "known", "later", "many", "most", "only", "over", "several", "such", "their", "then", "through", "time",
    "under", "until", "when", "while",
)  # fmt: skip
DEFAULT_MAX_TRAJECTORY_TOKENS = 131072
MAX_CORPUS_CHARS = 100_000_000
EXTRA_TURNS = 4
FAILED_PARSE_REWARD = -0.1
CONTEXT_OVERFLOW_REWARD = -0.1
SYSTEM_PROMPT = "You read a document with the tool read_page, one page at a time, and count in it."


@chz.chz
class CountingTaskConfig:
    """``num_pages_hint``: the model is told the number of pages, or only its range. ``word_hint``: it is told the word, its
    first and last letter, or nothing (then ``words`` is one word). ``secret_num_pages``: the same number in every document.
    ``reward_tolerance``: relative error from which on the reward is 0.
    """

    num_pages_hint: NumPagesHint = "exact"
    word_hint: WordHint = "exact"
    num_pages_min: int = 28
    num_pages_max: int = 36
    page_chars: int = 10000
    words: tuple[str, ...] = DEFAULT_WORDS
    secret_num_pages: int | None = None
    reward_tolerance: float = 0.2

    @chz.validate
    def _check(self) -> None:
        if not 1 <= self.num_pages_min <= self.num_pages_max:
            raise ConfigurationError(
                f"task.num_pages_min={self.num_pages_min} must lie between 1 and num_pages_max={self.num_pages_max}"
            )
        if self.secret_num_pages is not None and not self.num_pages_min <= self.secret_num_pages <= self.num_pages_max:
            raise ConfigurationError(
                f"task.secret_num_pages={self.secret_num_pages} must lie between {self.num_pages_min} and {self.num_pages_max}"
            )
        if not self.words or (self.word_hint == "hidden" and len(self.words) > 1):
            raise ConfigurationError("task.words needs a word, and only one with task.word_hint=hidden")
        if self.page_chars < 1 or self.reward_tolerance <= 0:
            raise ConfigurationError("task.page_chars and task.reward_tolerance must be above 0")

    @property
    def max_turns(self) -> int:
        """A turn for every page, and some more."""
        return self.num_pages_max + EXTRA_TURNS


@dataclass(frozen=True)
class CountingProblem:
    """``pages``: text also behind the last page of the document, which has ``num_pages``."""

    word: str
    num_pages: int
    pages: tuple[str, ...]
    prompt: str
    true_count: int


def count_word(text: str, word: str) -> int:
    """How often a word stands in a text: whole runs of letters, whatever the case."""
    return sum(found.lower() == word.lower() for found in re.findall(r"[^\W\d_]+", text))


def closeness_reward(predicted: int, true_count: int, tolerance: float) -> float:
    """1 for the right number, falling to 0 at the relative error ``tolerance``."""
    return max(0.0, 1.0 - abs(predicted - true_count) / max(true_count, 1) / tolerance)


def parse_answer(text: str) -> int | None:
    """The number of the last line ``Answer: <number>``."""
    found = re.findall(r"Answer:\s*(\d[\d,]*)", text)
    return int(found[-1].replace(",", "")) if found else None


def build_prompt(config: CountingTaskConfig, word: str, num_pages: int) -> str:
    """The task."""
    what = {
        "exact": f'the word "{word}"',
        "first_last": f'a word that begins with "{word[0]}" and ends with "{word[-1]}"',
        "hidden": "a word that you are not told",
    }[config.word_hint]
    if config.num_pages_hint == "exact":
        pages = f"It has {num_pages} pages, from 1 to {num_pages}; all of them count."
    else:
        pages = (
            f"It has between {config.num_pages_min} and {config.num_pages_max} pages, from 1 on. Later pages show text, too, "
            "which is not part of the document and does not count."
        )
    return (
        f"How often does {what} stand in the document? {pages}\n"
        "Call read_page once in a reply. Upper and lower case are the same; only whole words count, and a word is a run of "
        'letters: in "sea-side" stands "sea", in "seaside" it does not.\n'
        "When you are done, reply without a call, with a last line of this form:\nAnswer: <number>"
    )


def split_pages(corpus: str, start: int, num_pages: int, page_chars: int) -> tuple[str, ...]:
    """Pages of ``page_chars`` characters from ``start`` on."""
    return tuple(corpus[start + i * page_chars : start + (i + 1) * page_chars] for i in range(num_pages))


def sample_problem(rng: random.Random, corpus: str, config: CountingTaskConfig) -> CountingProblem:
    """A random stretch of the corpus and a random word."""
    needed = config.num_pages_max * config.page_chars
    if len(corpus) < needed:
        raise ConfigurationError(
            f"the corpus has {len(corpus)} characters; task.num_pages_max * task.page_chars = {needed} are needed"
        )
    num_pages = config.secret_num_pages or rng.randint(config.num_pages_min, config.num_pages_max)
    word, start = rng.choice(config.words), rng.randint(0, len(corpus) - needed)
    pages = split_pages(corpus, start, config.num_pages_max, config.page_chars)
    true_count = sum(count_word(page, word) for page in pages[:num_pages])
    return CountingProblem(word, num_pages, pages, build_prompt(config, word, num_pages), true_count)


def load_corpus(path: str | None) -> str:
    """A text file; "example": texts that come with the package; None: WikiText-103 from the hub."""
    if path == "example":
        return "\n".join(str(row["text"]) for row in read_jsonl(entry.example_data("search_corpus.jsonl")))
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                return file.read(MAX_CORPUS_CHARS)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"corpus_path={path!r} cannot be read: {error}") from error
    import datasets

    name = "Salesforce/wikitext"
    try:
        rows = datasets.load_dataset(name, "wikitext-103-raw-v1", split="train")
    except Exception as error:
        raise ConfigurationError(
            f"dataset {name!r} cannot be loaded ({error}). Offline: run where ./{name} is a folder with the data, or give "
            "corpus_path=<file>.txt"
        ) from error
    lines, length = [], 0
    for row in rows:
        if line := str(row["text"]).strip():
            lines.append(line)
            length += len(line) + 1
        if length >= MAX_CORPUS_CHARS:
            break
    return "\n".join(lines)


@dataclass
class PageReader:
    """The tool ``read_page``. A second call in the same turn is refused."""

    pages: tuple[str, ...]
    pages_read: set[int] = field(default_factory=set)
    called: bool = False

    @tool
    def read_page(self, page: Annotated[int, "Number of the page, from 1 on"]) -> ToolResult:
        """Read one page of the document."""
        if self.called:
            return error_tool_result("call read_page once in a reply", error_type="calls_refused")
        self.called = True
        if not 1 <= page <= len(self.pages):
            return error_tool_result(f"there is no page {page}", error_type="pages_not_there")
        self.pages_read.add(page)
        return simple_tool_result(f"Page {page}:\n{self.pages[page - 1]}", metrics={"pages_read": 1.0})


@dataclass
class OneToolCallPerTurnEnv(AgentToolMessageEnv):
    """Tells the reader when a turn begins."""

    reader: PageReader = field(kw_only=True)

    async def step(self, message: Message) -> MessageStepResult:
        self.reader.called = False
        return await super().step(message)


@dataclass(frozen=True)
class CountingEnvGroupBuilder(EnvGroupBuilder):
    """Several attempts at one document."""

    problem: CountingProblem
    task: CountingTaskConfig
    renderer: renderers.Renderer
    group_size: int
    max_trajectory_tokens: int
    max_generation_tokens: int | None = None

    def _reward(self, history: list[Message]) -> tuple[float, Metrics]:
        answer = parse_answer(get_text_content(history[-1])) if history[-1]["role"] == "assistant" else None
        if answer is None:
            return 0.0, {"answered": 0.0}
        reward = closeness_reward(answer, self.problem.true_count, self.task.reward_tolerance)
        return reward, {"answered": 1.0, "exact": float(answer == self.problem.true_count)}

    async def make_envs(self) -> Sequence[Env]:
        return [self._env() for _ in range(self.group_size)]

    def _env(self) -> Env:
        reader = PageReader(self.problem.pages)
        prefix = self.renderer.create_conversation_prefix_with_tools([reader.read_page.to_spec()], SYSTEM_PROMPT)
        messages = OneToolCallPerTurnEnv(
            tools=[reader.read_page],
            initial_messages=[*prefix, Message(role="user", content=self.problem.prompt)],
            max_turns=self.task.max_turns,
            reward_fn=self._reward,
            failed_parse_reward=FAILED_PARSE_REWARD,
            reader=reader,
        )
        return EnvFromMessageEnv(
            self.renderer,
            messages,
            FAILED_PARSE_REWARD,
            max_trajectory_tokens=self.max_trajectory_tokens,
            max_generation_tokens=self.max_generation_tokens,
            context_overflow_reward=CONTEXT_OVERFLOW_REWARD,
        )

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        return [(0.0, {"one_sequence": float(is_one_sequence(trajectory))}) for trajectory in trajectory_group]

    def logging_tags(self) -> list[str]:
        return ["counting"]


def is_one_sequence(trajectory: Trajectory) -> bool:
    """Whether every prompt begins with all that was read and sampled before it: then the episode is trained as one sequence,
    and a difference between sampler and trainer is not one of rendering."""
    seen: list[int] = []
    for turn in trajectory.transitions:
        prompt = turn.ob.to_ints()
        if prompt[: len(seen)] != seen:
            return False
        seen = [*prompt, *turn.ac.tokens]
    return True


class CountingDataset(RLDataset):
    """Documents that are drawn anew for each batch; the same for the same batch number."""

    def __init__(self, builder: CountingDatasetBuilder, corpus: str, renderer: renderers.Renderer) -> None:
        self.builder, self.corpus, self.renderer = builder, corpus, renderer

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        settings = self.builder
        rng = random.Random(f"{settings.seed}/{index}")
        return [
            CountingEnvGroupBuilder(
                sample_problem(rng, self.corpus, settings.task),
                settings.task,
                self.renderer,
                settings.group_size,
                settings.max_trajectory_tokens,
                settings.max_generation_tokens,
            )
            for _ in range(settings.batch_size)
        ]

    def __len__(self) -> int:
        return self.builder.n_batches


@chz.chz
class CountingDatasetBuilder(RLDatasetBuilder):
    """``corpus_path``: see ``load_corpus``."""

    batch_size: int
    group_size: int
    model_name_for_tokenizer: str
    renderer_name: str
    task: CountingTaskConfig = chz.field(default_factory=CountingTaskConfig)
    n_batches: int = 1000
    seed: int = 0
    max_trajectory_tokens: int = DEFAULT_MAX_TRAJECTORY_TOKENS
    max_generation_tokens: int | None = None
    corpus_path: str | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        corpus = load_corpus(self.corpus_path)
        sample_problem(random.Random(0), corpus, self.task)  # a corpus that is too short is refused at once
        return CountingDataset(self, corpus, renderer), None
