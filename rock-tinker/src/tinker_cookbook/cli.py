"""The command ``tinker-cookbook``: recipe, weights, chat, play, runs."""

from __future__ import annotations

import difflib
import runpy
import sys
from pathlib import Path
from typing import Any

import click

from tinker import TinkerError
from tinker_cookbook.exceptions import TinkerCookbookError
from tinker_cookbook.faults import MISSING_PACKAGE_EXIT_CODE, missing_package, refusal

_RECIPES = Path(__file__).parent / "recipes"
_KEY_VALUE = {"ignore_unknown_options": True, "help_option_names": []}  # --help is the program's own


class _MissingPackage(click.ClickException):
    exit_code = MISSING_PACKAGE_EXIT_CODE


class _Commands(click.Group):
    """What a person can mend ends the program with one line. Recipes say so themselves; other errors of a recipe keep
    their traceback, since a run of hours may have ended."""

    def invoke(self, ctx: click.Context) -> Any:
        """The command."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            message = missing_package(error)
            if message is None:
                raise
            raise _MissingPackage(message) from error
        except (TinkerCookbookError, TinkerError) as error:
            if ctx.invoked_subcommand == "recipe":
                raise
            message = refusal(error) if isinstance(error, TinkerError) else str(error)
            raise click.ClickException(message) from error


def recipe_names() -> list[str]:
    """Modules below ``recipes`` that can be run, with dots; ``chat_sl`` stands for ``chat_sl.train``."""
    names = []
    for path in sorted(_RECIPES.rglob("*.py")):
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
            names.append(".".join(path.relative_to(_RECIPES).with_suffix("").parts))
    return names


def resolve_recipe(name: str) -> str:
    """Module of a recipe by its full or short name.

    Raises:
        click.ClickException: there is none; names the nearest one.
    """
    known = recipe_names()
    for candidate in (name, f"{name}.train", f"{name}.cli"):
        if candidate in known:
            return candidate
    ends = [full for full in known if full.removesuffix(".train").split(".")[-1] == name]
    if len(ends) == 1:
        return ends[0]
    short = [full.removesuffix(".train") for full in known]
    near = difflib.get_close_matches(name, [*short, *(item.split(".")[-1] for item in short)], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise click.ClickException(f"no recipe {name!r}.{hint} Recipes: {', '.join(short)}")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Recipes and tools on top of the Tinker SDK."""


@main.command(context_settings=_KEY_VALUE, add_help_option=False)
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def recipe(name: str | None, arguments: tuple[str, ...]) -> None:
    """Run a recipe: NAME key=value ... Without NAME, list all; NAME --help lists its settings."""
    if name in (None, "-h", "--help", "list"):
        for known in recipe_names():
            click.echo(known.removesuffix(".train"))
        return
    module = f"tinker_cookbook.recipes.{resolve_recipe(str(name))}"
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


@main.group()
def weights() -> None:
    """Weights of a checkpoint."""


@weights.command("download")
@click.argument("tinker_path")
@click.argument("output_dir")
@click.option("--base-url", default=None, help="Server; default: TINKER_BASE_URL")
def download_command(tinker_path: str, output_dir: str, base_url: str | None) -> None:
    """Write the files of a checkpoint to a folder."""
    from tinker_cookbook.weights import download

    click.echo(download(tinker_path=tinker_path, output_dir=output_dir, base_url=base_url))


@weights.command("adapter")
@click.argument("adapter_path")
@click.argument("output_path")
@click.option("--base-model", required=True, help="Folder or hub name of the base model")
def adapter_command(adapter_path: str, output_path: str, base_model: str) -> None:
    """Convert a downloaded checkpoint to a PEFT folder."""
    from tinker_cookbook.weights import build_lora_adapter

    click.echo(build_lora_adapter(base_model=base_model, adapter_path=adapter_path, output_path=output_path))


@weights.command("merge")
@click.argument("adapter_path")
@click.argument("output_path")
@click.option("--base-model", required=True, help="Folder or hub name of the base model")
@click.option("--dtype", default="bfloat16", show_default=True)
def merge_command(adapter_path: str, output_path: str, base_model: str, dtype: str) -> None:
    """Merge a downloaded checkpoint into its base model."""
    from tinker_cookbook.weights import build_hf_model

    click.echo(build_hf_model(base_model=base_model, adapter_path=adapter_path, output_path=output_path, dtype=dtype))


@weights.command("publish")
@click.argument("model_path")
@click.argument("repo_id")
@click.option("--public", is_flag=True, help="Public repository")
def publish_command(model_path: str, repo_id: str, public: bool) -> None:
    """Upload a model folder to the Hugging Face hub."""
    from tinker_cookbook.weights import publish_to_hf_hub

    click.echo(publish_to_hf_hub(model_path=model_path, repo_id=repo_id, private=not public))


@main.command(context_settings=_KEY_VALUE, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def chat(arguments: tuple[str, ...]) -> None:
    """Talk to a model: base_model=... or model_path=tinker://... (key=value; --help lists all)."""
    _run_module("tinker_cookbook.chat_app.tinker_chat_cli", arguments)


@main.command(context_settings=_KEY_VALUE, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def play(arguments: tuple[str, ...]) -> None:
    """Play an environment yourself: game=guess_number or game=arithmetic, model_name=... for its tokenizer."""
    _run_module("tinker_cookbook.rl.play_w_env", arguments)


@main.command()
@click.argument("root", required=False)
@click.option("--metric", "metrics", multiple=True, help="Also show the last value of this metric")
def runs(root: str | None, metrics: tuple[str, ...]) -> None:
    """List the training runs below a folder (default: the folder of runs)."""
    from tinker_cookbook.cli_utils import runs_path
    from tinker_cookbook.stores import RunRegistry, storage_from_uri

    storage = storage_from_uri(str(root or runs_path()))
    registry = RunRegistry([storage])
    found = registry.get_runs()
    if not found:
        click.echo(f"no runs below {storage.url()}")
    for run in found:
        rows = registry.get_training_store(run.run_id).read_metrics()
        step = rows[-1].get("step") if rows else None
        shown = [f"{run.status:9}", f"step {step}", run.run_id]
        for metric in metrics:
            values = [row[metric] for row in rows if metric in row]
            shown.append(f"{metric}={values[-1]:.4g}" if values else f"{metric}=-")
        click.echo("  ".join(shown))


def _run_module(module: str, arguments: tuple[str, ...]) -> None:
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
