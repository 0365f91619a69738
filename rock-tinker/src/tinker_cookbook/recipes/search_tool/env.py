"""Questions that are answered with the help of a search tool."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import chz
import numpy as np

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.recipes.search_tool.bm25 import BM25Index
from tinker_cookbook.renderers import Message, get_text_content
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, RLDataset, RLDatasetBuilder
from tinker_cookbook.tool_use import ToolResult, build_agent_tool_env, simple_tool_result, tool
from tinker_cookbook.utils.file_utils import read_jsonl

SYSTEM = (
    "Answer the question. You may search a collection of texts first, several times if needed. When you know the "
    "answer, write one line of this form:\nAnswer: <a few words>"
)


def normalize(text: str) -> str:
    """Lower case, no punctuation, articles or double spaces."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(given: str, golden: Sequence[str]) -> bool:
    """Whether an answer equals one of the golden ones after normalisation."""
    return any(normalize(given) == normalize(answer) for answer in golden)


class SearchTool:
    """The tool ``search`` over an index."""

    def __init__(self, index: BM25Index, n_results: int = 3) -> None:
        self._index, self._n_results = index, n_results

    @tool
    def search(self, query_list: Annotated[list[str], "Search queries, answered one by one"]) -> ToolResult:
        """Search the collection of texts."""
        blocks = []
        for query in query_list:
            found = self._index.search(query, self._n_results)
            lines = [f"{number}. {text}" for number, (text, _) in enumerate(found, start=1)] or ["nothing found"]
            blocks.append(f"Query: {query}\n" + "\n".join(lines))
        return simple_tool_result("\n\n".join(blocks), metrics={"searches": float(len(query_list))})


@dataclass(frozen=True)
class SearchGroupBuilder(EnvGroupBuilder):
    """Several attempts at one question."""

    question: str
    golden: tuple[str, ...]
    index: BM25Index
    renderer: renderers.Renderer
    num_envs: int
    max_turns: int
    format_coef: float
    max_trajectory_tokens: int
    n_results: int

    def _reward(self, messages: list[Message]) -> tuple[float, Metrics]:
        answers = [get_text_content(message) for message in messages if message["role"] == "assistant"]
        found = re.findall(r"Answer:\s*(.+)", answers[-1]) if answers else []
        correct = float(bool(found) and exact_match(found[-1], self.golden))
        format_ok = float(bool(found))
        return correct + self.format_coef * (format_ok - 1), {"correct": correct, "format": format_ok}

    async def make_envs(self) -> Sequence[Env]:
        search = SearchTool(self.index, self.n_results).search
        prefix = self.renderer.create_conversation_prefix_with_tools([search.to_spec()], SYSTEM)
        messages = [*prefix, Message(role="user", content=self.question)]
        return [
            build_agent_tool_env(
                self.renderer,
                [search],
                messages,
                self._reward,
                max_turns=self.max_turns,
                max_trajectory_tokens=self.max_trajectory_tokens,
                terminate_on_parse_error=False,
            )
            for _ in range(self.num_envs)
        ]

    def logging_tags(self) -> list[str]:
        return ["search"]


class SearchDataset(RLDataset):
    """Questions in batches."""

    def __init__(self, builders: list[SearchGroupBuilder], batch_size: int) -> None:
        self.builders, self.batch_size = builders, batch_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.builders[index * self.batch_size : (index + 1) * self.batch_size]

    def __len__(self) -> int:
        return max(len(self.builders) // self.batch_size, 1)


@chz.chz
class SearchDatasetBuilder(RLDatasetBuilder):
    """``questions_path``: JSONL with question and golden_answers. ``corpus_path``: JSONL with text."""

    questions_path: str
    corpus_path: str
    batch_size: int
    group_size: int
    renderer_name: str
    model_name_for_tokenizer: str
    max_turns: int = 5
    format_coef: float = 0.1
    max_trajectory_tokens: int = 32 * 1024
    n_results: int = 3
    seed: int = 2
    num_test: int = 16

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        index = BM25Index([str(row["text"]) for row in read_jsonl(self.corpus_path)])
        if not index.documents:
            raise ConfigurationError(f"corpus_path={self.corpus_path!r} holds no texts")
        rows = read_jsonl(self.questions_path)
        for number, row in enumerate(rows, start=1):
            if "question" not in row or not row.get("golden_answers"):
                raise DataFormatError(f"{self.questions_path}, row {number}: needs 'question' and 'golden_answers'")

        def build(row: dict[str, object], num_envs: int) -> SearchGroupBuilder:
            golden = row["golden_answers"]
            return SearchGroupBuilder(
                str(row["question"]),
                tuple(str(answer) for answer in golden),  # type: ignore[attr-defined]
                index,
                renderer,
                num_envs,
                self.max_turns,
                self.format_coef,
                self.max_trajectory_tokens,
                self.n_results,
            )

        order = [int(i) for i in np.random.default_rng(self.seed).permutation(len(rows))]
        held_out = min(self.num_test, len(rows) // 4)
        test = [build(rows[i], 1) for i in order[:held_out]]
        train = SearchDataset([build(rows[i], self.group_size) for i in order[held_out:]], self.batch_size)
        return train, SearchDataset(test, len(test)) if test else None
