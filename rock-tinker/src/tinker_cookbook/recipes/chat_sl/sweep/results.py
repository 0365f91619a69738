"""What the runs of a sweep came to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tinker_cookbook.checkpoint_utils import load_checkpoints_file
from tinker_cookbook.utils.file_utils import read_jsonl


def is_complete(run: str | Path) -> bool:
    """Whether a run has its final checkpoint."""
    return any(record.final for record in load_checkpoints_file(run))


def collect(
    sweep_dir: str | Path, *, config_keys: Iterable[str] | None = None, require_complete: bool = True
) -> list[dict[str, Any]]:
    """A row for each run below a folder: its name, settings (all, or those of ``config_keys``) and the last value of each
    metric. ``require_complete``: without runs that have no final checkpoint."""
    rows = []
    keys = None if config_keys is None else set(config_keys)
    for folder in sorted(Path(sweep_dir).expanduser().iterdir()):
        if not (folder / "config.json").is_file() or not (folder / "metrics.jsonl").is_file():
            continue
        if require_complete and not is_complete(folder):
            continue
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        row: dict[str, Any] = {}
        for metrics in read_jsonl(folder / "metrics.jsonl"):
            row |= metrics
        # Settings last: a scheduled learning rate is a metric, too.
        row |= {name: value for name, value in config.items() if keys is None or name in keys}
        rows.append({"run": folder.name, **row})
    return rows


def table(rows: Sequence[dict[str, Any]], metric: str, higher_is_better: bool = False) -> str:
    """Metric by learning rate and rank; a star marks the best value."""
    values = {(row["learning_rate"], row["lora_rank"]): row[metric] for row in rows if metric in row}
    if not values:
        known = sorted({key for row in rows for key in row if isinstance(row[key], float)})
        return f"no run has the metric {metric!r}; there are {', '.join(known)}" if rows else "no run is complete"
    best = max(values.values()) if higher_is_better else min(values.values())
    ranks = sorted({rank for _, rank in values})
    lines = [f"{metric}", f"{'learning_rate':>13}" + "".join(f"{f'rank {rank}':>12}" for rank in ranks)]
    for rate in sorted({rate for rate, _ in values}):
        cells = [values.get((rate, rank)) for rank in ranks]
        shown = ["-" if value is None else f"{value:.4f}{'*' if value == best else ' '}" for value in cells]
        lines.append(f"{rate:>13g}" + "".join(f"{text:>12}" for text in shown))
    return "\n".join(lines)
