"""Run folders and command lines of recipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from tinker_cookbook.exceptions import ConfigurationError

LogdirBehavior: TypeAlias = Literal["delete", "resume", "ask", "raise"]

RUNS_DIR_ENV_VAR = "TINKER_COOKBOOK_RUNS_DIR"
DEFAULT_RUNS_DIR = "~/tinker-runs"


def runs_path(*parts: str) -> str:
    """Path below the folder of runs: ``$TINKER_COOKBOOK_RUNS_DIR`` or ``~/tinker-runs``."""
    root = os.environ.get(RUNS_DIR_ENV_VAR) or DEFAULT_RUNS_DIR
    return str(Path(root).expanduser().joinpath(*parts))


def model_name_from_argv(argv: Sequence[str] | None = None, default: str = "") -> str:
    """Value of ``model_name=...`` on a command line, before the configuration is parsed."""
    return setting_from_argv("model_name", argv) or default


def setting_from_argv(name: str, argv: Sequence[str] | None = None) -> str | None:
    """Value of ``name=...`` on a command line, before the configuration is parsed."""
    for argument in sys.argv[1:] if argv is None else argv:
        if argument.startswith(f"{name}="):
            return argument.split("=", 1)[1]
    return None


async def ask(prompt: str) -> str:
    """A line that a person types. Ctrl-C ends the wait, as it would not with the threads that asyncio waits for.

    Raises:
        EOFError: the input has ended.
    """
    if not sys.stdin.isatty():
        return await asyncio.to_thread(input, prompt)
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def settle(text: str | None) -> None:
        if not line.done():
            line.set_exception(EOFError()) if text is None else line.set_result(text)

    def read() -> None:
        try:
            text: str | None = input(prompt)
        except EOFError:
            text = None
        with contextlib.suppress(RuntimeError):  # the program has ended meanwhile
            loop.call_soon_threadsafe(settle, text)

    threading.Thread(target=read, daemon=True).start()
    try:
        return await line
    except asyncio.CancelledError:
        print()
        raise


def check_log_dir(log_dir: str | Path, behavior_if_exists: LogdirBehavior) -> None:
    """Decide what happens with a run folder that is there already.

    delete: remove it. resume: keep it, the run goes on. raise: refuse. ask: on a terminal ask which; without one, refuse.

    Raises:
        ConfigurationError: the folder exists and must not be used.
    """
    if behavior_if_exists not in ("delete", "resume", "ask", "raise"):
        raise ConfigurationError(
            f"behavior_if_log_dir_exists={behavior_if_exists!r} is unknown; use delete, resume, ask or raise"
        )
    folder = Path(log_dir).expanduser()
    if not folder.exists() or not any(folder.iterdir()):
        return
    choice: str = behavior_if_exists
    if choice == "ask":
        if not sys.stdin.isatty():
            raise ConfigurationError(
                f"log_path={folder} exists; without a terminal to ask, give behavior_if_log_dir_exists=resume, delete or raise"
            )
        while choice not in ("delete", "resume", "raise"):
            try:
                choice = input(f"{folder} exists. delete, resume or exit? ").strip().lower()
            except EOFError:
                choice = "raise"
            choice = {"exit": "raise", "d": "delete", "r": "resume", "e": "raise"}.get(choice, choice)
    if choice == "delete":
        shutil.rmtree(folder)
    elif choice == "raise":
        raise ConfigurationError(
            f"log_path={folder} exists; give another log_path or behavior_if_log_dir_exists=resume"
        )
