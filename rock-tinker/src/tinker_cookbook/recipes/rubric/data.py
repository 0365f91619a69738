"""Conversations with rubric items by which a grader scores the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.renderers import Message, format_content_as_string
from tinker_cookbook.utils.file_utils import read_jsonl

SCORE_PATTERN = r"<score>(.*?)</score>"
SCORE_INSTRUCTIONS = "Write your score, a number between 0 and 1, between <score> and </score>."


@dataclass(frozen=True)
class Rubric:
    """One thing that a good answer has."""

    rubric_str: str
    extraction_regex: str = SCORE_PATTERN
    grader_output_format_instruction: str = SCORE_INSTRUCTIONS

    def get_grader_prompt(self, convo: list[Message]) -> list[Message]:
        """What the grader is asked."""
        shown = "\n\n".join(f"{m['role']}: {format_content_as_string(m['content'])}" for m in convo)
        text = (
            "Grade the last answer of the conversation by the rubric.\n\n"
            f"<conversation>\n{shown}\n</conversation>\n\n<rubric>\n{self.rubric_str}\n</rubric>\n\n"
            f"{self.grader_output_format_instruction}"
        )
        return [Message(role="user", content=text)]

    def extract_score(self, response: str) -> float:
        """Score in the grader's answer; 0 without a readable one."""
        return self.find_score(response) or 0.0

    def find_score(self, response: str) -> float | None:
        """Score in the grader's answer; None without a readable one."""
        match = re.search(self.extraction_regex, response, re.DOTALL)
        if match is None:
            return None
        try:
            return float(match.group(1).strip())
        except ValueError:
            return None


@dataclass(frozen=True)
class RubricDatapoint:
    """A conversation to answer, and its rubric."""

    convo: list[Message]
    rubric_items: list[Rubric]

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> RubricDatapoint:
        """From a JSON row. Raises DataFormatError."""
        if not row.get("convo") or not row.get("rubric_items"):
            raise DataFormatError(f"row needs 'convo' and 'rubric_items'; fields: {sorted(row)}")
        return cls(row["convo"], [Rubric(**item) for item in row["rubric_items"]])


def load_datapoints(path: str) -> list[RubricDatapoint]:
    """All rows of a JSONL file."""
    if not Path(path).is_file():
        raise ConfigurationError(f"rubric file {path!r} does not exist; make one with recipes.rubric.generate_data")
    return [RubricDatapoint.from_row(row) for row in read_jsonl(path)]
