"""`rock image`: images of the local runtime."""

from __future__ import annotations

import json

import click

from rock.cli.admin import config_option
from rock.config import load_config
from rock.runtime.local.images import ImageBind, ImageStore, LocalImage
from rock.runtime.local.root import LocalRoot


def _store(config_path: str | None) -> ImageStore:
    return ImageStore(LocalRoot(load_config(config_path).state_folder / "local"))


@click.group()
def image() -> None:
    """Images of the local runtime."""


@image.command("list")
@config_option
def listing(config_path: str | None) -> None:
    """List images."""
    for name in ["local", *_store(config_path).names()]:
        click.echo(name)


@image.command("show")
@config_option
@click.argument("name")
def show(config_path: str | None, name: str) -> None:
    """Print what an image is made of."""
    click.echo(json.dumps(_store(config_path).load(name).model_dump(), indent=2))


@image.command("define")
@config_option
@click.option("--from", "parent", default="local", show_default=True, help="image to start from")
@click.option("--tree", "trees", multiple=True, help="folder of this machine, copy on write at the same path")
@click.option("--bind", "binds", multiple=True, metavar="SOURCE[:TARGET]", help="folder of this machine, read-only")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE")
@click.option("--workdir")
@click.argument("name")
def define(
    config_path: str | None,
    parent: str,
    trees: tuple[str, ...],
    binds: tuple[str, ...],
    env: tuple[str, ...],
    workdir: str | None,
    name: str,
) -> None:
    """Make an image from another one and folders of this machine."""
    store = _store(config_path)
    old: LocalImage = store.load(parent)
    pairs = [bind.partition(":")[::2] for bind in binds]
    new = old.model_copy(
        update={
            "trees": [*old.trees, *trees],
            "binds": [*old.binds, *(ImageBind(source=source, target=target or source) for source, target in pairs)],
            "env": {**old.env, **dict(item.partition("=")[::2] for item in env)},
            "workdir": workdir or old.workdir,
        }
    )
    store.save(name, new)
    click.echo(f"image {name} is stored")


@image.command("remove")
@config_option
@click.argument("name")
def remove(config_path: str | None, name: str) -> None:
    """Forget an image and the layers that nothing else uses."""
    _store(config_path).remove(name)
