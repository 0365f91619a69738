"""The result of a conformance run as a table or as JSON."""

from __future__ import annotations

import json
from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .probe import Outcome, Verdict

_STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.SKIP: "yellow"}


def counts(outcomes: list[Outcome]) -> dict[str, int]:
    """How many passed, failed and were skipped."""
    found = Counter(outcome.verdict for outcome in outcomes)
    return {verdict.value: found[verdict] for verdict in Verdict}


def as_json(base_url: str, base_model: str, outcomes: list[Outcome]) -> str:
    """The outcomes as one JSON document."""
    rows = [
        {
            "probe": outcome.name,
            "claim": outcome.claim,
            "verdict": outcome.verdict.value,
            "detail": outcome.detail,
            "seconds": round(outcome.seconds, 3),
        }
        for outcome in outcomes
    ]
    document = {"base_url": base_url, "base_model": base_model, "counts": counts(outcomes), "probes": rows}
    return json.dumps(document, indent=2)


def print_table(console: Console, base_url: str, base_model: str, outcomes: list[Outcome]) -> None:
    """The outcomes as a table, with their sums in its caption."""
    sums = ", ".join(f"{count} {verdict}" for verdict, count in counts(outcomes).items())
    table = Table(title=f"{base_url}, {base_model}", caption=sums, show_lines=False)
    table.add_column("probe", overflow="fold", ratio=3)
    table.add_column("claim", ratio=5)
    table.add_column("verdict", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("detail", overflow="fold", ratio=5)
    for outcome in outcomes:
        # Text, since a server's words may hold what looks like markup.
        table.add_row(
            outcome.name,
            outcome.claim,
            Text(outcome.verdict.value, style=_STYLES[outcome.verdict]),
            f"{outcome.seconds:.1f}",
            Text(outcome.detail),
        )
    console.print(table)
