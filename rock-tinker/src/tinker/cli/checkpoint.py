"""tinker checkpoint"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import click

from .. import types
from .._download import download_checkpoint, folder_name
from .._errors import TinkerError
from .output import CliError, count, lora_long, moment, print_json, print_table, size, wants_json, yes_no
from .server import check_server, rest_client

_DELETE_THREADS = 32
_PAGE = 100
_TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}


@click.group("checkpoint")
def group() -> None:
    """List, inspect, publish, download and delete checkpoints."""


def parse_path(path: str) -> types.ParsedCheckpointTinkerPath:
    try:
        return types.ParsedCheckpointTinkerPath.from_tinker_path(path)
    except ValueError as error:
        raise CliError(
            f"Invalid checkpoint path: {path}",
            "A path looks like this: tinker://<run id>/<weights|sampler_weights|external_weights>/<name>",
        ) from error


def _fetch(limit: int, run_id: str | None) -> list[types.Checkpoint]:
    client = rest_client()
    if run_id is not None:
        checkpoints = client.list_checkpoints(run_id).result().checkpoints
        return checkpoints[:limit] if limit else checkpoints
    found: list[types.Checkpoint] = []
    while True:
        page = min(_PAGE, limit - len(found)) if limit else _PAGE
        answer = client.list_user_checkpoints(limit=page, offset=len(found)).result()
        found.extend(answer.checkpoints)
        total = answer.cursor.total_count if answer.cursor else len(found)
        if (limit and len(found) >= limit) or not answer.checkpoints or len(found) >= total:
            return found


@group.command("list")
@click.option("--run-id", help="Only those of one run.")
@click.option("--limit", default=20, show_default=True, help="How many; 0 = all.")
def list_checkpoints(run_id: str | None, limit: int) -> None:
    """List checkpoints, the newest first."""
    checkpoints = _fetch(limit, run_id)
    if wants_json():
        print_json({**({"run_id": run_id} if run_id else {}), "checkpoints": checkpoints})
        return
    if not checkpoints:
        click.echo("No checkpoints found")
        return
    rows = [
        (
            checkpoint.checkpoint_id,
            checkpoint.checkpoint_type,
            size(checkpoint.size_bytes),
            yes_no(checkpoint.public),
            moment(checkpoint.time),
            _expiry(checkpoint),
            checkpoint.tinker_path,
        )
        for checkpoint in checkpoints
    ]
    columns = ("Checkpoint ID", "Type", "Size", "Public", "Created", "Expires", "Path")
    print_table(columns, rows, count(len(checkpoints), "checkpoint"))


def _expiry(checkpoint: types.Checkpoint) -> str:
    return moment(checkpoint.expires_at) if checkpoint.expires_at else "Never"


@group.command()
@click.argument("path")
def info(path: str) -> None:
    """Show one checkpoint."""
    parsed = parse_path(path)
    client = rest_client()
    found = [
        checkpoint
        for checkpoint in client.list_checkpoints(parsed.training_run_id).result().checkpoints
        if checkpoint.checkpoint_id == parsed.checkpoint_id
    ]
    if not found:
        raise CliError(
            f"Checkpoint not found: {path}", f"See: tinker checkpoint list --run-id {parsed.training_run_id}"
        )
    (checkpoint,) = found
    run = client.get_training_run(parsed.training_run_id).result()
    if wants_json():
        print_json({**checkpoint.model_dump(), "is_lora": run.is_lora, "lora_rank": run.lora_rank})
        return
    rows = [
        ("Checkpoint ID", checkpoint.checkpoint_id),
        ("Type", checkpoint.checkpoint_type),
        ("Tinker Path", checkpoint.tinker_path),
        ("Size", size(checkpoint.size_bytes)),
        ("Public", yes_no(checkpoint.public)),
        ("Created", moment(checkpoint.time)),
        ("Expires", _expiry(checkpoint)),
        ("Training Run ID", parsed.training_run_id),
        ("LoRA", lora_long(run.is_lora, run.lora_rank)),
    ]
    print_table(("Property", "Value"), rows, f"Checkpoint: {checkpoint.checkpoint_id}")


@group.command()
@click.argument("path")
def publish(path: str) -> None:
    """Let others read a checkpoint."""
    rest_client().publish_checkpoint_from_tinker_path(parse_path(path).tinker_path).result()


@group.command()
@click.argument("path")
def unpublish(path: str) -> None:
    """Let others read a checkpoint no longer."""
    rest_client().unpublish_checkpoint_from_tinker_path(parse_path(path).tinker_path).result()


@group.command("set-ttl")
@click.argument("path")
@click.option("--ttl", type=int, help="Seconds from now until the checkpoint expires.")
@click.option("--remove", is_flag=True, help="Never expire.")
def set_ttl(path: str, ttl: int | None, remove: bool) -> None:
    """Set or remove the expiry of a checkpoint."""
    if (ttl is None) == (not remove):
        raise CliError("Give one of --ttl SECONDS and --remove")
    rest_client().set_checkpoint_ttl_from_tinker_path(parse_path(path).tinker_path, ttl).result()


@group.command()
@click.argument("paths", nargs=-1)
@click.option("--run-id", help="All checkpoints of a run that match the filters.")
@click.option("--type", "kind", type=click.Choice(list(_TYPES)), help="Only of this kind.")
@click.option("--before", type=click.DateTime(), help="Only made before (UTC).")
@click.option("--after", type=click.DateTime(), help="Only made after (UTC).")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(
    paths: tuple[str, ...],
    run_id: str | None,
    kind: str | None,
    before: datetime | None,
    after: datetime | None,
    yes: bool,
) -> None:
    """Delete checkpoints for good."""
    if bool(paths) == bool(run_id):
        raise CliError(
            "Give checkpoint paths or --run-id", "E.g. tinker checkpoint delete --run-id <run id> --type weights"
        )
    if paths and (kind or before or after):
        raise CliError("--type, --before and --after go with --run-id")
    chosen = [parse_path(path).tinker_path for path in paths] if paths else _matching(str(run_id), kind, before, after)
    if not chosen:
        click.echo(f"No checkpoints found for run {run_id} matching filters")
        return
    if not yes:
        for path in chosen:
            click.echo(path, err=True)
        click.confirm(f"Delete {count(len(chosen), 'checkpoint')} for good?", abort=True, err=True)
    _delete_all(chosen)


def _matching(run_id: str, kind: str | None, before: datetime | None, after: datetime | None) -> list[str]:
    return [
        checkpoint.tinker_path
        for checkpoint in rest_client().list_checkpoints(run_id).result().checkpoints
        if (kind is None or checkpoint.checkpoint_type == _TYPES[kind])
        and (before is None or checkpoint.time < before.replace(tzinfo=UTC))
        and (after is None or checkpoint.time > after.replace(tzinfo=UTC))
    ]


def _delete_all(paths: list[str]) -> None:
    client = rest_client()

    def delete_one(path: str) -> dict[str, str] | None:
        try:
            client.delete_checkpoint_from_tinker_path(path).result()
        except (TinkerError, ValueError) as error:
            return {"tinker_path": path, "error": str(error)}
        return None

    with ThreadPoolExecutor(_DELETE_THREADS) as executor:
        failed = [failure for failure in executor.map(delete_one, paths) if failure]
    deleted = len(paths) - len(failed)
    if wants_json():
        click.echo(json.dumps({"deleted_count": deleted, "failed": failed}))
    else:
        click.echo(f"Deleted {deleted} checkpoint(s)")
        for failure in failed:
            click.echo(f"Not deleted: {failure['tinker_path']}: {failure['error']}", err=True)
    if failed:
        raise CliError(f"{count(len(failed), 'checkpoint')} could not be deleted")


@group.command()
@click.argument("path")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to make the checkpoint's folder in.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
def download(path: str, output: Path | None, force: bool) -> None:
    """Download a checkpoint as an adapter or model folder."""
    parsed = parse_path(path)
    destination = (output or Path()) / folder_name(path)
    check_server()
    from .progress import download_progress

    with download_progress() as progress:
        result = download_checkpoint(parsed.tinker_path, destination, force=force, progress=progress)
    if wants_json():
        print_json(
            {
                "checkpoint_path": result.checkpoint_path,
                "destination": str(result.destination),
                "file_size_bytes": result.file_size_bytes,
            }
        )
    else:
        click.echo(f"{size(result.file_size_bytes)} written to {result.destination}")


@group.command("push-hf")
@click.argument("path")
@click.option("--repo", required=True, help="Repository on the hub, e.g. me/my-adapter.")
@click.option("--public", is_flag=True, help="Make a new repository public.")
@click.option("--revision", help="Branch to push to.")
@click.option("--commit-message", help="Message of the commit.")
@click.option("--create-pr", is_flag=True, help="Open a pull request instead of pushing.")
@click.option("--allow-pattern", multiple=True, help="Only files that match.")
@click.option("--ignore-pattern", multiple=True, help="No files that match.")
@click.option("--no-model-card", is_flag=True, help="Do not write a README.md.")
def push_hf(path: str, **options: object) -> None:
    """Push an adapter to the Hugging Face hub; needs the package huggingface_hub and a login there."""
    from .push import push_to_hub

    result = push_to_hub(parse_path(path), **options)  # type: ignore[arg-type]
    if wants_json():
        print_json(result)
    else:
        click.echo(f"Pushed {path} to {result['repo_id']}")
