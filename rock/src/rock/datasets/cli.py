"""``rock datasets``: list, tasks, fetch, verify."""

from __future__ import annotations

from pathlib import Path

import click

from rock.datasets.fetch import fetch_task, verify_task
from rock.datasets.registry import Registry, load_registry
from rock.datasets.source import DatasetError, FolderSource, GitSource, TaskSource

registry_option = click.option(
    "--registry-path", type=click.Path(exists=True, path_type=Path), help="Registry file (JSON list of datasets)."
)


@click.group()
def datasets() -> None:
    """Task datasets in Harbor's format."""


@datasets.command(name="list")
@registry_option
def list_datasets(registry_path: Path | None) -> None:
    """Datasets of a registry file."""
    for dataset in _registry(registry_path).datasets:
        click.echo(f"{dataset.name}@{dataset.version}  {len(dataset.tasks)} tasks  {dataset.description}".rstrip())


@datasets.command()
@click.argument("dataset")
@registry_option
def tasks(dataset: str, registry_path: Path | None) -> None:
    """Tasks of a dataset."""
    try:
        for task in _registry(registry_path).dataset(dataset).tasks:
            click.echo(task.name)
    except DatasetError as error:
        raise click.ClickException(str(error)) from error


@datasets.command()
@click.argument("task_id")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The task goes to OUTPUT/TASK_ID.")
@click.option("--dataset", help="Name of a dataset of the registry, NAME or NAME@VERSION.")
@registry_option
@click.option("--git-url", help="Repository that holds the task.")
@click.option("--git-commit", help="Pinned commit of it.")
@click.option("--git-path", help="Folder of the task in it.")
@click.option("--folder", type=click.Path(exists=True, path_type=Path), help="Folder of the task on this machine.")
def fetch(
    task_id: str,
    output: Path,
    dataset: str | None,
    registry_path: Path | None,
    git_url: str | None,
    git_commit: str | None,
    git_path: str | None,
    folder: Path | None,
) -> None:
    """Fetch one task, unchanged, with the checksum of every file."""
    given = [name for name, value in (("--dataset", dataset), ("--git-url", git_url), ("--folder", folder)) if value]
    if len(given) != 1:
        raise click.UsageError(
            f"give exactly one of --dataset, --git-url and --folder, not {' and '.join(given) or 'none'}"
        )
    try:
        source: TaskSource
        if dataset:
            source = _registry(registry_path).source(dataset, task_id)
        elif git_url:
            if not git_commit or not git_path:
                raise click.UsageError("--git-url needs --git-commit and --git-path")
            source = GitSource(git_url, git_commit, git_path)
        else:
            assert folder is not None
            source = FolderSource(folder)
        fetched = fetch_task(source, task_id, output)
    except DatasetError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{fetched.folder}: {len(fetched.files)} files; manifest {fetched.manifest}")


@datasets.command()
@click.argument("manifest", type=click.Path(exists=True, path_type=Path))
def verify(manifest: Path) -> None:
    """Check a fetched task against its manifest."""
    try:
        fetched = verify_task(manifest)
    except DatasetError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{fetched.folder}: {len(fetched.files)} files, unchanged")


def _registry(path: Path | None) -> Registry:
    if path is None:
        raise click.UsageError("--registry-path is missing; name a registry file")
    try:
        return load_registry(path)
    except DatasetError as error:
        raise click.ClickException(str(error)) from error
