"""``tinker-backend conformance``."""

from __future__ import annotations

import sys

import click
import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import report
from .client import Failed, Overdue, Refused
from .probe import Outcome, Verdict
from .suite import Suite, select


@click.command("conformance")
@click.option("--base-url", required=True, help="Server to probe, without /api/v1.")
@click.option("--base-model", default=None, help="Model to probe; the first trainable one by default.")
@click.option("--api-key", default=None, envvar="TINKER_API_KEY", help="Key to send (or TINKER_API_KEY).")
@click.option("--only", multiple=True, help="A probe or a group of probes; may be repeated.")
@click.option("--timeout", default=300.0, show_default=True, help="Longest wait for one result, in seconds.")
@click.option("--tolerance", default=0.02, show_default=True, help="Nats within which two logprobs are the same.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--list", "only_list", is_flag=True, help="List the probes and leave.")
def conformance(
    base_url: str,
    base_model: str | None,
    api_key: str | None,
    only: tuple[str, ...],
    timeout: float,
    tolerance: float,
    as_json: bool,
    only_list: bool,
) -> None:
    """Probe any server of the Tinker API for what training code relies on.

    The exit status is 0 when no probe fails, 1 when one does, 2 when the server cannot be probed.
    """
    try:
        probes = select(list(only))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--only") from error
    if only_list:
        for probe in probes:
            click.echo(f"{probe.group:12} {probe.name:48} {probe.claim}")
        return
    suite = Suite(base_url, api_key, base_model, timeout, tolerance)
    progress_console = Console(stderr=True)
    outcomes: list[Outcome] = []
    try:
        model = suite.base_model
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=progress_console,
            disable=not progress_console.is_terminal,
            transient=True,
        ) as progress:
            task = progress.add_task("", total=len(probes))
            for probe in probes:
                progress.update(task, description=probe.name)
                outcomes.append(probe.run(suite))
                progress.advance(task)
    except (httpx.HTTPError, Refused, Failed, Overdue, ValueError, KeyError) as error:
        click.echo(f"{base_url} cannot be probed: {type(error).__name__}: {error}", err=True)
        sys.exit(2)
    finally:
        suite.close()
    if as_json:
        click.echo(report.as_json(base_url, model, outcomes))
    else:
        console = Console()
        report.print_table(console if console.is_terminal else Console(width=200), base_url, model, outcomes)
    sys.exit(1 if any(outcome.verdict is Verdict.FAIL for outcome in outcomes) else 0)
