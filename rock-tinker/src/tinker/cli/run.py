"""tinker run"""

from __future__ import annotations

from collections.abc import Callable

import click

from .. import types
from .output import CliError, count, lora, lora_long, moment, print_json, print_table, wants_json
from .server import rest_client

_PAGE = 100


@click.group("run")
def group() -> None:
    """Training runs."""


def _last_checkpoint(run: types.TrainingRun) -> types.Checkpoint | None:
    candidates = [checkpoint for checkpoint in (run.last_checkpoint, run.last_sampler_checkpoint) if checkpoint]
    return max(candidates, key=lambda checkpoint: checkpoint.time, default=None)


def _checkpoint_id(run: types.TrainingRun) -> str:
    checkpoint = _last_checkpoint(run)
    return checkpoint.checkpoint_id if checkpoint else "-"


def _checkpoint_time(run: types.TrainingRun) -> str:
    checkpoint = _last_checkpoint(run)
    return moment(checkpoint.time) if checkpoint else "-"


def _status(run: types.TrainingRun) -> str:
    return "Failed" if run.corrupted else "OK"


_COLUMNS: dict[str, tuple[str, Callable[[types.TrainingRun], str]]] = {
    "id": ("Run ID", lambda run: run.training_run_id),
    "model": ("Base Model", lambda run: run.base_model),
    "owner": ("Owner", lambda run: run.model_owner),
    "lora": ("LoRA", lambda run: lora(run.is_lora, run.lora_rank)),
    "updated": ("Last Update", lambda run: moment(run.last_request_time)),
    "status": ("Status", _status),
    "checkpoint": ("Last Checkpoint", _checkpoint_id),
    "checkpoint_time": ("Checkpoint Time", _checkpoint_time),
}
_DEFAULT_COLUMNS = "id,model,lora,updated,status"


@group.command("list")
@click.option("--limit", default=20, show_default=True, help="How many runs; 0 = all.")
@click.option("-c", "--columns", default=_DEFAULT_COLUMNS, show_default=True, help=f"Of: {', '.join(_COLUMNS)}.")
def list_runs(limit: int, columns: str) -> None:
    """List runs, the newest first."""
    chosen = [column.strip() for column in columns.split(",") if column.strip()]
    unknown = [column for column in chosen if column not in _COLUMNS]
    if unknown or not chosen:
        raise CliError(f"Unknown column(s): {', '.join(unknown) or '(none)'}", f"Available: {', '.join(_COLUMNS)}")
    runs = fetch_runs(limit)
    if wants_json():
        print_json({"runs": runs})
        return
    if not runs:
        click.echo("No training runs found")
        return
    rows = [[_COLUMNS[column][1](run) for column in chosen] for run in runs]
    print_table([_COLUMNS[column][0] for column in chosen], rows, count(len(runs), "training run"))


def fetch_runs(limit: int) -> list[types.TrainingRun]:
    """Runs, page by page; ``limit`` 0 means all."""
    client = rest_client()
    runs: list[types.TrainingRun] = []
    while True:
        page = min(_PAGE, limit - len(runs)) if limit else _PAGE
        answer = client.list_training_runs(limit=page, offset=len(runs)).result()
        runs.extend(answer.training_runs)
        enough = limit and len(runs) >= limit
        if enough or not answer.training_runs or len(runs) >= answer.cursor.total_count:
            return runs


@group.command()
@click.argument("run_id")
def info(run_id: str) -> None:
    """Show one run."""
    run = rest_client().get_training_run(run_id).result()
    if wants_json():
        print_json(run)
        return
    rows = [
        ("Run ID", run.training_run_id),
        ("Base Model", run.base_model),
        ("Owner", run.model_owner),
        ("LoRA", lora_long(run.is_lora, run.lora_rank)),
        ("Last Update", moment(run.last_request_time)),
        ("Status", _status(run)),
    ]
    for name, checkpoint in (("Training", run.last_checkpoint), ("Sampler", run.last_sampler_checkpoint)):
        if checkpoint:
            rows.append((f"Last {name} Checkpoint", checkpoint.checkpoint_id))
            rows.append(("  - Time", moment(checkpoint.time)))
            rows.append(("  - Path", checkpoint.tinker_path))
    rows.extend((f"Label {key}", value) for key, value in (run.user_metadata or {}).items())
    print_table(("Property", "Value"), rows, f"Training Run: {run_id}")
