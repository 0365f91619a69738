"""What every recipe does before its own work: command line, run folder, and the big configuration from the small one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chz
from chz.blueprint import exit_on_entrypoint_error

import tinker
from tinker_cookbook import checkpoint_utils, cli_utils
from tinker_cookbook.exceptions import ConfigurationError, DataError, RendererError
from tinker_cookbook.faults import MISSING_PACKAGE_EXIT_CODE, missing_package, refusal
from tinker_cookbook.rl import config as rl_config
from tinker_cookbook.rl.types import RLDatasetBuilder
from tinker_cookbook.supervised import train as supervised_train
from tinker_cookbook.supervised.types import SupervisedDatasetBuilder
from tinker_cookbook.utils.config_fields import shared_values
from tinker_cookbook.utils.session_naming import slugify

_REFUSED = (tinker.BadRequestError, tinker.AuthenticationError, tinker.PermissionDeniedError, tinker.NotFoundError)


@contextlib.contextmanager
def faults_in_one_line() -> Iterator[None]:
    """A setting that cannot work, data that cannot be read, a server that refuses or does not answer end the program
    with one line and exit code 1, a package that is not installed with 2, Ctrl-C with 130, SIGTERM with 143. `--help` is
    no fault."""
    _check_arguments()
    try:
        with _terminated_as_interrupted() as signals:
            yield
    except SystemExit:
        if "--help" in sys.argv[1:]:
            sys.exit(0)
        raise
    except KeyboardInterrupt:
        print("terminated" if signals else "interrupted", file=sys.stderr)
        sys.exit(128 + (signals or [signal.SIGINT])[0])
    except (ConfigurationError, DataError, RendererError, ImportError) as error:
        missing = missing_package(error)
        if missing is not None:
            print(f"refused: {error if 'pip install' in str(error) else missing}", file=sys.stderr)
            sys.exit(MISSING_PACKAGE_EXIT_CODE)
        if isinstance(error, ImportError):
            raise
        sys.exit(f"refused: {error}")
    except _REFUSED as error:
        sys.exit(f"refused by the server: {refusal(error)}")
    except tinker.APIConnectionError as error:
        sys.exit(
            f"no answer from the server: {str(error).rstrip('.')}. Start one (tinker-backend serve), and set TINKER_BASE_URL."
        )
    except tinker.TinkerError as error:
        if type(error) is not tinker.TinkerError:  # its own kinds tell of work that was under way
            raise
        sys.exit(f"refused: {error}")


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[list[int]]:
    """SIGTERM ends the program as Ctrl-C does, so that sandboxes and the session at the server are closed. Gives the signals
    that came."""
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a script
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before, interrupts = signal.signal(signal.SIGTERM, interrupt), signal.getsignal(signal.SIGINT)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        signal.signal(signal.SIGINT, interrupts or signal.SIG_DFL)


def _check_arguments() -> None:
    """Ends the program when an argument is no setting."""
    sys.argv[1:] = ["--help" if argument == "-h" else argument for argument in sys.argv[1:]]
    for argument in sys.argv[1:]:
        if "=" not in argument and argument != "--help":
            name = argument.lstrip("-") or "name"
            sys.exit(f"refused: {argument!r} is no setting; write {name}=VALUE, or --help for a list of all")


def run(main: Callable[[Any], Any]) -> None:
    """Parse ``key=value`` arguments into the configuration that ``main`` takes, and run it.

    Unknown keys are refused with the nearest known one; ``--help`` lists all.
    """

    def synchronous(config: Any) -> None:
        try:
            result = main(config)
            if inspect.isawaitable(result):
                asyncio.run(_wait(result))
        except KeyboardInterrupt:
            given = getattr(config, "log_path", None)
            folder = _folders[-1] if _folders else given
            if folder is not None and hasattr(config, "save_every"):
                asks = hasattr(config, "behavior_if_log_dir_exists")
                print(how_to_go_on(folder, asks, given is not None), file=sys.stderr)
            raise

    parameter = next(iter(inspect.signature(main, eval_str=True).parameters.values()))
    synchronous.__annotations__["config"] = parameter.annotation
    with faults_in_one_line():
        chz.nested_entrypoint(synchronous, allow_hyphens=True)


def run_plan(main: Callable[[Any], None], plan: Callable[[], chz.Blueprint[Any]]) -> None:
    """The same for a recipe whose ``plan`` can be changed by ``key=value`` arguments."""
    with faults_in_one_line():
        main(exit_on_entrypoint_error(plan().make_from_argv)(sys.argv[1:]))


async def _wait(awaitable: Any) -> None:
    await awaitable


def how_to_go_on(folder: str, asks: bool = True, given: bool = True) -> str:
    """What to do with the folder of a run that was stopped. ``asks``: the recipe asks what to do with a folder that exists;
    others go on by themselves. ``given``: the folder was named, so that the same command would meet it again."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        return f"nothing was written to {folder} yet"
    last = checkpoint_utils.get_last_checkpoint(folder)
    if last is None and not any(path.glob("*/checkpoints.jsonl")):
        setting = " with behavior_if_log_dir_exists=delete" if asks and given else ""
        return f"{folder} has no checkpoint yet: the same command{setting} begins again"
    where = f"checkpoint {last.name}" if last is not None else "the last checkpoint"
    setting = " behavior_if_log_dir_exists=resume" if asks else ""
    return f"log_path={folder}{setting} goes on from {where}"


_folders: list[str] = []
"""Folders that this program has chosen for its runs."""


def remember_folder(folder: str) -> str:
    """Note the folder of this program's run, for what is said when it is stopped."""
    _folders.append(folder)
    return folder


def run_folder(config: Any, recipe: str, *hints: Any) -> str:
    """The run's folder: ``log_path`` if given, else a new one below the folder of runs.

    ``behavior_if_log_dir_exists`` decides about an existing folder. The name of a new one holds the recipe, the model,
    the hints and the time to the second; a number is added if it is taken.
    """
    behavior: cli_utils.LogdirBehavior = getattr(config, "behavior_if_log_dir_exists", "ask")
    if config.log_path is not None:
        cli_utils.check_log_dir(config.log_path, behavior)
        return remember_folder(str(Path(config.log_path).expanduser()))
    model = str(getattr(config, "model_name", None) or getattr(config, "base_model", "")).split("/")[-1]
    parts = [recipe, slugify(model), *(str(hint) for hint in hints), time.strftime("%Y%m%d-%H%M%S")]
    name = "-".join(part for part in parts if part)
    candidate, number = cli_utils.runs_path(name), 1
    while Path(candidate).exists():
        number += 1
        candidate = cli_utils.runs_path(f"{name}-{number}")
    return remember_folder(candidate)


async def renderer_name(config: Any) -> str:
    """The renderer asked for, else that of the checkpoint to load, else the recommended one."""
    return await checkpoint_utils.resolve_renderer_name_from_checkpoint_or_default_async(
        model_name=config.model_name,
        explicit_renderer_name=getattr(config, "renderer_name", None),
        load_checkpoint_path=getattr(config, "load_checkpoint_path", None),
        base_url=getattr(config, "base_url", None),
    )


def to_rl_config(
    config: Any, dataset_builder: RLDatasetBuilder, log_path: str, recipe: str, **changes: Any
) -> rl_config.Config:
    """RL configuration with every field that the recipe's configuration has, too.

    ``kl_penalty_coef`` > 0 takes the base model as the reference; ``max_steps_off_policy`` switches to async.
    """
    values = shared_values(config, rl_config.Config)
    values.update(dataset_builder=dataset_builder, log_path=log_path, recipe_name=recipe, **changes)
    values["wandb_name"] = values.get("wandb_name") or Path(log_path).name
    if values.get("kl_penalty_coef", 0) > 0 and values.get("kl_reference_config") is None:
        values["kl_reference_config"] = rl_config.KLReferenceConfig(base_model=config.model_name)
    off_policy = getattr(config, "max_steps_off_policy", None)
    if off_policy is not None:
        values["async_config"] = rl_config.AsyncConfig(
            max_steps_off_policy=off_policy,
            groups_per_batch=config.groups_per_batch,
            loss_fn=getattr(config, "loss_fn", "importance_sampling"),
        )
    if getattr(config, "rollout_max_retries", None) is not None:
        from tinker_cookbook.rl.rollout_strategy import RetryOnFailure

        values["rollout_error_tolerance"] = RetryOnFailure(max_retries=config.rollout_max_retries)
    return rl_config.Config(**values)


def to_supervised_config(
    config: Any, dataset_builder: SupervisedDatasetBuilder, log_path: str, recipe: str, **changes: Any
) -> supervised_train.Config:
    """Supervised configuration with every field that the recipe's configuration has, too."""
    values = shared_values(config, supervised_train.Config)
    values.update(dataset_builder=dataset_builder, log_path=log_path, recipe_name=recipe, **changes)
    values["wandb_name"] = values.get("wandb_name") or Path(log_path).name
    return supervised_train.Config(**values)


def example_data(name: str) -> str:
    """Path of a data file that comes with the package."""
    return str(Path(__file__).parent.parent / "example_data" / name)
