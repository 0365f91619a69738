"""Draws the curves of runs: ``python tests/bench/learning/plot.py RUNS_FOLDER docs/images/learning``."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parent))
from experiments import EXPERIMENTS

_INKS = ("#2458a6", "#b4471f")


def draw(name: str, records: list[dict[str, Any]], out: Path) -> Path:
    """One picture of an experiment: a panel a metric, a line a seed."""
    experiment = EXPERIMENTS[name]
    figure, panels = plt.subplots(
        1, len(experiment.curves), figsize=(4.2 * len(experiment.curves), 2.8), squeeze=False, layout="constrained"
    )
    for curve, ink, panel in zip(experiment.curves, _INKS, panels[0], strict=False):
        for record in records:
            points = record["curves"][curve.key]
            panel.plot(
                [x for x, _ in points], [y for _, y in points], color=ink, marker="o", markersize=3, linewidth=1.4
            )
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
        picture = draw(name, records, out)
        for record in records:
            for key, points in record["curves"].items():
                first, last = points[0], points[-1]
                print(
                    f"{picture.name} seed {record['seed']} {record['seconds']} s load {record['load'][0]}: {key} "
                    f"{first[1]:.3g} (step {first[0]}) -> {last[1]:.3g} (step {last[0]})"
                )


if __name__ == "__main__":
    main()
