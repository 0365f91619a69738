"""Write rubric data of additions."""

from __future__ import annotations

import json
import random
from pathlib import Path

import chz

from tinker_cookbook.recipes import entry


@chz.chz
class Config:
    """Where to write and how much."""

    train_path: str = entry.example_data("example_rubric_train.jsonl")
    test_path: str = entry.example_data("example_rubric_test.jsonl")
    num_train: int = 1000
    num_test: int = 100
    largest: int = 100
    seed: int = 0


def addition(rng: random.Random, largest: int) -> dict[str, object]:
    """One sum and its rubric."""
    x, y = rng.randrange(largest), rng.randrange(largest)
    return {
        "convo": [
            {"role": "user", "content": "What is 4 + 5?"},
            {"role": "assistant", "content": "9"},
            {"role": "user", "content": f"What is {x} + {y}?"},
        ],
        "rubric_items": [{"rubric_str": f"Does the answer give {x + y}? Score 1 if it does, else 0."}],
    }


def cli_main(cli: Config) -> None:
    """Write both files."""
    rng = random.Random(cli.seed)
    for path, count in ((cli.train_path, cli.num_train), (cli.test_path, cli.num_test)):
        lines = [json.dumps(addition(rng, cli.largest)) for _ in range(count)]
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{count} rows: {path}")


if __name__ == "__main__":
    entry.run(cli_main)
