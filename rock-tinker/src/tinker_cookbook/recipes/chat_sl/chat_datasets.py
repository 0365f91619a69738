"""Conversations from the hub. Offline, a folder of the same relative path is used."""

from __future__ import annotations

from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message
from tinker_cookbook.supervised.data import chat_datasets, conversation_from_row
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset


def load_conversations(path: str, split: str) -> list[list[Message]]:
    """All conversations of a split."""
    import datasets

    try:
        rows: Any = datasets.load_dataset(path, split=split)
    except Exception as error:
        raise ConfigurationError(
            f"dataset {path!r} cannot be loaded ({error}). Offline: run where ./{path} is a folder with the data, or "
            "give dataset=<file>.jsonl"
        ) from error
    return [conversation_from_row(row, where=path) for row in rows]


@chz.chz
class NoRobotsBuilder(ChatDatasetBuilder):
    """9500 conversations written by people."""

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        path = "HuggingFaceH4/no_robots"
        return chat_datasets(self, load_conversations(path, "train"), load_conversations(path, "test"))


@chz.chz
class Tulu3Builder(ChatDatasetBuilder):
    """The Tulu 3 mixture; the first 1024 conversations are held out."""

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        rows = load_conversations("allenai/tulu-3-sft-mixture", "train")
        return chat_datasets(self, rows[1024:], rows[:1024])
