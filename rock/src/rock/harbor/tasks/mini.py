"""The mini family: generated tasks of one shell command, seconds each, with a train and a held-out split.

Kinds, words and files are data (``data/mini``). Each task brings four worked examples of its own kind, which the agent's profile
``single`` puts before the task as chat turns: small models solve a part of the tasks then, and none without.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import yaml

from rock.harbor.tasks.folder import write_task

SPLITS = ("train", "heldout")
EXAMPLES = 4
HARD_KINDS = ("copy", "first", "replace", "sort")
FENCE = "```bash\n{}\n```"


@cache
def _data() -> tuple[dict[str, Any], dict[str, Any]]:
    folder = files("rock.harbor.tasks") / "data" / "mini"
    return yaml.safe_load((folder / "kinds.yaml").read_text()), yaml.safe_load((folder / "words.yaml").read_text())


MINI_KINDS = tuple(kind for kind in _data()[0] if kind not in HARD_KINDS)
"""Kinds that a small model solves now and then. ``HARD_KINDS`` are built when they are named."""


@dataclass(frozen=True)
class MiniTask:
    """One instance. Paths are relative to the working folder; ``examples`` are pairs of instruction and command."""

    task_id: str
    kind: str
    split: str
    instruction: str
    solution: str
    files: dict[str, str]
    expected: dict[str, str]
    absent: tuple[str, ...]
    folders: tuple[str, ...]
    examples: tuple[tuple[str, str], ...]

    def chat_examples(self) -> list[dict[str, str]]:
        """The worked examples as chat turns."""
        turns = []
        for instruction, command in self.examples:
            turns.append({"role": "user", "content": instruction})
            turns.append({"role": "assistant", "content": FENCE.format(command)})
        return turns


def mini_tasks(split: str, per_kind: int, kinds: Sequence[str] = MINI_KINDS) -> list[MiniTask]:
    """The first ``per_kind`` instances of each kind; the same ones every time.

    Raises:
        ValueError: unknown split or kind.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is unknown; choose {' or '.join(SPLITS)}")
    unknown = [kind for kind in kinds if kind not in _data()[0]]
    if unknown:
        raise ValueError(f"kind {unknown[0]!r} is unknown; there are {', '.join(_data()[0])}")
    return [_make(kind, split, number) for kind in kinds for number in range(per_kind)]


def write_mini_tasks(
    output: Path, *, train_per_kind: int = 6, heldout_per_kind: int = 2, kinds: Sequence[str] = MINI_KINDS
) -> dict[str, list[Path]]:
    """Writes ``output/train`` and ``output/heldout`` in Harbor's format; returns the task folders of each.

    Raises:
        TaskFolderError: a folder exists with other content.
    """
    written: dict[str, list[Path]] = {}
    for split, count in (("train", train_per_kind), ("heldout", heldout_per_kind)):
        written[split] = [_write(task, output / split / task.task_id) for task in mini_tasks(split, count, kinds)]
    return written


def _make(kind: str, split: str, number: int) -> MiniTask:
    template = _data()[0][kind]
    draw = random.Random(f"{kind}-{split}-{number}")
    examples: list[tuple[str, str]] = []
    values: dict[str, str] = {}
    seen: set[str] = set()
    while len(examples) <= EXAMPLES:
        values = _values(draw, split)
        instruction = template["instruction"].format(**values)
        if instruction not in seen:
            seen.add(instruction)
            examples.append((instruction, template["solution"].format(**values)))

    def filled(mapping: dict[str, str] | None) -> dict[str, str]:
        return {name.format(**values): text.format(**values) for name, text in (mapping or {}).items()}

    instruction, solution = examples.pop()
    suffix = "" if split == "train" else f"{split}-"
    return MiniTask(
        task_id=f"mini__{kind}-{suffix}{number:03d}",
        kind=kind,
        split=split,
        instruction=instruction,
        solution=solution,
        files=filled(template.get("files")),
        expected=filled(template.get("expected")),
        absent=tuple(name.format(**values) for name in template.get("absent", ())),
        folders=tuple(name.format(**values) for name in template.get("folders", ())),
        examples=tuple(examples),
    )


def _values(draw: random.Random, split: str) -> dict[str, str]:
    known = _data()[1][split]
    file, other = draw.sample(known["files"], 2)
    word, second, folder, *lines = draw.sample(known["words"], 7)
    if lines == sorted(lines):
        lines.reverse()
    return {
        "file": f"{file}.txt",
        "other": f"{other}.txt",
        "word": word,
        "second": second,
        "folder": folder,
        "lines": "\n".join(lines),
        "count": str(len(lines)),
        "sorted": "\n".join(sorted(lines)),
        "first": lines[0],
    }


def _write(task: MiniTask, target: Path) -> Path:
    def fill(folder: Path) -> None:
        with as_file(files("rock.harbor.tasks") / "data" / "mini") as data:
            environment, tests, solution = folder / "environment", folder / "tests", folder / "solution"
            for path in (environment / "work", tests / "expected", solution):
                path.mkdir(parents=True)
            (folder / "instruction.md").write_text(task.instruction + "\n")
            shutil.copyfile(data / "task.toml", folder / "task.toml")
            shutil.copyfile(data / "Dockerfile", environment / "Dockerfile")
            shutil.copyfile(data / "test.sh", tests / "test.sh")
        (environment / "examples.json").write_text(json.dumps(task.chat_examples(), indent=1) + "\n")
        (environment / "work" / ".keep").touch()
        for place, mapping in ((environment / "work", task.files), (tests / "expected", task.expected)):
            for name, text in mapping.items():
                path = place / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text + "\n" if text else "")
        checks = [f"file {name}" for name in task.expected]
        checks += [f"absent {name}" for name in task.absent]
        checks += [f"folder {name}" for name in task.folders]
        (tests / "checks").write_text("\n".join(checks) + "\n")
        (tests / "task_id").write_text(task.task_id + "\n")
        (solution / "solve.sh").write_text(f"#!/bin/bash\nset -e\ncd /work\n{task.solution}\n")

    write_task(target, {"task_id": task.task_id, "source": "generated (mini family)", "split": task.split}, fill)
    return target
