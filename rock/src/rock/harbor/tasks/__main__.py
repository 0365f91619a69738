"""Command line of the task builders: ``python -m rock.harbor.tasks list | build | mini | prebuild``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from rock.harbor.tasks.folder import TaskFolderError
from rock.harbor.tasks.mini import HARD_KINDS, MINI_KINDS, write_mini_tasks
from rock.harbor.tasks.repository import PYTHON_VERSIONS, REPOSITORY_TASKS, build_repository_task
from rock.harbor.tasks.sources import SourceError


@click.group()
def tasks() -> None:
    """Build tasks in Harbor's format."""


@tasks.command(name="list")
def list_tasks() -> None:
    """Name what can be built."""
    for task in REPOSITORY_TASKS.values():
        click.echo(f"{task.task_id}  from {task.archive.project} {task.archive.version}")
    click.echo(f"mini tasks of the kinds {', '.join(MINI_KINDS)}; harder ones: {', '.join(HARD_KINDS)}")


@tasks.command()
@click.argument("task_id")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The task goes to OUTPUT/TASK_ID.")
@click.option(
    "--python", default="3.11", show_default=True, type=click.Choice(PYTHON_VERSIONS), help="Python of the task."
)
@click.option("--cache", type=click.Path(path_type=Path), help="Where downloads are kept (~/.cache/rock/sources).")
def build(task_id: str, output: Path, python: str, cache: Path | None) -> None:
    """Rebuild a repository problem from its released sources."""
    try:
        click.echo(build_repository_task(task_id, output, python=python, cache=cache))
    except (ValueError, SourceError, TaskFolderError) as error:
        raise click.ClickException(str(error)) from error


@tasks.command()
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), help="Tasks go to OUTPUT/train and OUTPUT/heldout."
)
@click.option("--train-per-kind", default=6, show_default=True, type=click.IntRange(1, 1000))
@click.option("--heldout-per-kind", default=2, show_default=True, type=click.IntRange(0, 1000))
@click.option("--kinds", default=",".join(MINI_KINDS), show_default=True, help="Kinds, separated by commas.")
def mini(output: Path, train_per_kind: int, heldout_per_kind: int, kinds: str) -> None:
    """Write the family of mini tasks."""
    names = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    try:
        written = write_mini_tasks(
            output, train_per_kind=train_per_kind, heldout_per_kind=heldout_per_kind, kinds=names
        )
    except (ValueError, TaskFolderError) as error:
        raise click.ClickException(str(error)) from error
    for split, folders in written.items():
        click.echo(f"{split}: {len(folders)} tasks in {output / split}")


@tasks.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--store", required=True, type=click.Path(path_type=Path), help="Folder of the built layers.")
@click.option(
    "--network", default="none", show_default=True, type=click.Choice(["none", "host"]), help="Of RUN instructions."
)
def prebuild(folders: tuple[Path, ...], store: Path, network: str) -> None:
    """Build the images of tasks (or of folders of tasks) for local sandboxes, so that their first start is quick too."""
    from rock.harbor.dockerfile import DockerfileError
    from rock.harbor.images import ImageBuilder, ImageError
    from rock.runtime.local import LocalRoot

    found = [path.parent for folder in folders for path in sorted(folder.glob("**/task.toml"))]
    if not found:
        raise click.ClickException(f"no task.toml lies below {', '.join(map(str, folders))}")

    async def run() -> None:
        builder = ImageBuilder(LocalRoot(store), network=network, timeout=1800)
        for task in found:
            image = await builder.build(task / "environment")
            click.echo(f"{task.name}: {len(image.layers)} layers")

    try:
        asyncio.run(run())
    except (DockerfileError, ImageError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    tasks(prog_name="python -m rock.harbor.tasks")
