"""A sweep over learning rates and ranks, of supervised fine-tuning or of another recipe (``recipe=math_rl``)."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chz

from tinker_cookbook import cli_utils
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.chat_sl.sweep import results, runner
from tinker_cookbook.utils.config_fields import field_names
from tinker_cookbook.utils.session_naming import slugify


@chz.chz
class SweepSettings:
    """``base``: the settings of the recipe. ``training_budget_examples``: each run trains on so many examples, if
    ``base.max_steps`` is not given. ``metric``: what the table at the end shows. ``skip_existing``: leave finished runs."""

    recipe: str = "chat_sl"
    learning_rates: list[float] = chz.field(default_factory=lambda: [1e-5, 3e-5, 1e-4, 3e-4, 5e-4, 1e-3])
    lora_ranks: list[int] = chz.field(default_factory=lambda: [32, 128])
    training_budget_examples: int = 100000
    max_parallel: int = 1
    sweep_dir: str | None = None
    skip_existing: bool = False
    metric: str = "train_mean_nll"
    higher_is_better: bool = False


def get_recipe(name: str) -> tuple[type, Callable[[Any], Any]]:
    """Configuration and main function of a recipe by its name, with or without ``.train``.

    Raises:
        ConfigurationError: there is none, or it has no learning rate or rank to try.
    """
    for module_name in (f"tinker_cookbook.recipes.{name}.train", f"tinker_cookbook.recipes.{name}"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not module_name.startswith(str(error.name)):
                raise
            continue
        config = getattr(module, "CLIConfig", None)
        if config is not None and {"learning_rate", "lora_rank", "log_path"} <= field_names(config):
            return config, module.cli_main
    raise ConfigurationError(f"recipe={name!r} is no recipe with the settings learning_rate and lora_rank")


def run_sweep(config: Any, recipe_name: str) -> None:
    """Run all combinations and print the table; exit code 1 if a run failed."""
    _, main_fn = get_recipe(recipe_name)
    base = config.base
    if base.log_path is not None:
        raise ConfigurationError("base.log_path: the runs of a sweep lie below sweep_dir")
    size = getattr(base, "batch_size", None)
    if base.max_steps is None and size is not None:
        base = chz.replace(base, max_steps=max(config.training_budget_examples // size, 1))
    name = f"sweep-{slugify(recipe_name)}-{slugify(base.model_name.split('/')[-1])}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = config.sweep_dir or cli_utils.runs_path(name)
    print(f"{len(config.learning_rates) * len(config.lora_ranks)} runs below {folder}", flush=True)
    rows = runner.run(
        main_fn,
        base,
        sweep_dir=folder,
        max_parallel=config.max_parallel,
        skip_existing=config.skip_existing,
        learning_rate=config.learning_rates,
        lora_rank=config.lora_ranks,
    )
    print(results.table(results.collect(folder), config.metric, config.higher_is_better))
    failed = [Path(row["log_path"]).name for row in rows if row["status"] == "failed"]
    if failed:
        sys.exit(f"{len(failed)} of {len(rows)} runs failed: {folder}/{failed[0]}.out says why")


def sweep_config(recipe: str) -> type:
    """Configuration of a sweep over a recipe: ``SweepSettings`` with the recipe's own as ``base``."""
    base, _ = get_recipe(recipe)
    fields = {"__annotations__": {"base": base}, "base": chz.field(default_factory=base), "__module__": __name__}
    return chz.chz(type("SweepConfig", (SweepSettings,), {**fields, "__doc__": SweepSettings.__doc__}))


def main() -> None:
    """Parse ``recipe=``, ``base.<setting>=`` and the settings of the sweep, and run it."""
    name = cli_utils.setting_from_argv("recipe") or "chat_sl"

    def sweep(config: Any) -> None:
        run_sweep(config, name)

    with entry.faults_in_one_line():
        sweep.__annotations__["config"] = sweep_config(name)
    entry.run(sweep)


if __name__ == "__main__":
    main()
