"""Draws the curves of runs: ``python tests/bench/learning/plot.py RUNS_FOLDER docs/images/learning``.

A thin line a seed, a thick one for their mean.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parent))
from experiments import EXPERIMENTS, HARBOR_GRPO

_INKS = ("#2458a6", "#b4471f")


def draw(name: str, records: list[dict[str, Any]], out: Path) -> Path:
    """One picture of an experiment: a panel a metric, a line a seed."""
    experiment = HARBOR_GRPO if name == "harbor_grpo" else EXPERIMENTS[name]
    figure, panels = plt.subplots(
        1, len(experiment.curves), figsize=(4.2 * len(experiment.curves), 2.8), squeeze=False, layout="constrained"
    )
    for curve, ink, panel in zip(experiment.curves, _INKS, panels[0], strict=False):
        for record in records:
            points = record["curves"][curve.key]
            panel.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=ink,
                marker="o",
                markersize=3,
                linewidth=1.2,
                alpha=0.55,
            )
        if len(records) > 1:
            by_step = defaultdict(list)
            for record in records:
                for step, value in record["curves"][curve.key]:
                    by_step[step].append(value)
            steps = sorted(by_step)
            panel.plot(steps, [statistics.fmean(by_step[step]) for step in steps], color=ink, linewidth=2.4)
        panel.set_xlabel("step")
        panel.set_title(curve.label, fontsize=10)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(experiment.title, fontsize=11)
    path = out / f"{name}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("*-seed*.json")):
        record = json.loads(path.read_text())
        found[record["name"]].append(record)
    for name, records in found.items():
        draw(name, records, out)
        for record in records:
            print(f"{name} seed {record['seed']}: {record['seconds']} s, {record['machine']}, load {record['load'][0]}")
        for key in records[0]["curves"]:
            starts = [ends_of(record["curves"][key])[0] for record in records]
            ends = [ends_of(record["curves"][key])[1] for record in records]
            print(f"  {key}: {shown(starts)} -> {shown(ends)}")


def ends_of(points: list[list[float]]) -> tuple[float, float]:
    """First value, and the mean of the last three (of the last one where there are fewer than six)."""
    values = [value for _, value in points]
    last = values[-3:] if len(values) >= 6 else values[-1:]
    return values[0], statistics.fmean(last)


def shown(values: list[float]) -> str:
    """Mean, the values of the seeds, and their standard deviation."""
    each = ", ".join(f"{value:.3g}" for value in values)
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3g}{spread} ({each})"


if __name__ == "__main__":
    main()
