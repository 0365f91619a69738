"""Progress of downloads: a bar on a terminal, a line a file elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from .._download import Progress
from .output import size


@contextmanager
def download_progress() -> Iterator[Progress]:
    """A callback for :func:`download_checkpoint`; writes to stderr."""
    if not sys.stderr.isatty():
        finished: set[str] = set()

        def log(name: str, written: int, total: int | None) -> None:
            if written == total and name not in finished:
                finished.add(name)
                click.echo(f"{name}: {size(written)}", err=True)

        yield log
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def draw(name: str, written: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=written)

        yield draw
