"""Runs a recipe for every combination of settings, each in a process and a folder of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from multiprocessing import connection
from pathlib import Path
from typing import Any

import chz

from tinker_cookbook.cli_utils import runs_path
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.chat_sl.sweep.grid import default_run_name, grid
from tinker_cookbook.recipes.chat_sl.sweep.results import is_complete
from tinker_cookbook.utils.config_fields import field_names
from tinker_cookbook.utils.file_utils import read_jsonl


def run(
    main_fn: Callable[[Any], Any],
    base_config: Any,
    *,
    sweep_dir: str | None = None,
    max_parallel: int = 1,
    executor: Executor | None = None,
    name_fn: Callable[[Mapping[str, Any]], str] | None = None,
    skip_existing: bool = False,
    **sweep_axes: Sequence[Any],
) -> list[dict[str, Any]]:
    """Call ``main_fn`` with ``base_config`` and every combination of the axes; a run that fails does not end the others.

    ``executor``: where the runs go instead of ``max_parallel`` processes. ``skip_existing``: runs with a final checkpoint
    are left as they are; others go on from their last checkpoint in any case. Returns a row for each run (settings, folder,
    "completed", "skipped" or "failed", seconds), in the order of the combinations; ``results.jsonl`` has them, too.

    Raises:
        ConfigurationError: an axis is no setting of the configuration.
    """
    unknown = set(sweep_axes) - field_names(type(base_config))
    if unknown:
        raise ConfigurationError(f"{', '.join(sorted(unknown))} is no setting of {type(base_config).__name__}")
    if max_parallel < 1:
        raise ConfigurationError(f"max_parallel={max_parallel} must be at least 1")
    folder = Path(sweep_dir or runs_path(f"sweep-{time.strftime('%Y%m%d-%H%M%S')}")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    waiting: list[tuple[dict[str, Any], Any]] = []
    for overrides in grid(sweep_axes):
        path = folder / (name_fn or default_run_name)(overrides)
        rows.append({**overrides, "log_path": str(path)})
        if skip_existing and is_complete(path):
            rows[-1] |= {"status": "skipped", "seconds": 0.0}
            continue
        changes = {**overrides, "log_path": str(path), "behavior_if_log_dir_exists": "resume"}
        waiting.append((rows[-1], chz.replace(base_config, **changes)))
    if executor is not None:
        _run_in_executor(executor, main_fn, waiting)
    else:
        _run_in_processes(max_parallel, main_fn, waiting)
    _write(folder / "results.jsonl", rows)
    return rows


def _ended(row: dict[str, Any], outcome: dict[str, Any]) -> None:
    row |= outcome
    print(f"{row['status']}: {Path(row['log_path']).name} {row.get('error', '')}".rstrip(), flush=True)


def _run_in_executor(
    executor: Executor, main_fn: Callable[[Any], Any], waiting: Sequence[tuple[dict[str, Any], Any]]
) -> None:
    rows: dict[Future[float], dict[str, Any]] = {executor.submit(_run, main_fn, cfg): row for row, cfg in waiting}
    for future in as_completed(rows):
        error = future.exception()
        if error is None:
            _ended(rows[future], {"status": "completed", "seconds": future.result()})
        else:
            _ended(rows[future], {"status": "failed", "error": f"{type(error).__name__}: {error}"})


def _run_in_processes(
    max_parallel: int, main_fn: Callable[[Any], Any], waiting: Sequence[tuple[dict[str, Any], Any]]
) -> None:
    """One run a process: its logging is that of the whole process. Not forked: a run opens connections and threads."""
    spawn = multiprocessing.get_context("spawn")
    queue = list(waiting)
    running: dict[Any, tuple[dict[str, Any], Any, float]] = {}
    try:
        while queue or running:
            while queue and len(running) < max_parallel:
                row, config = queue.pop(0)
                process = spawn.Process(target=_run, args=(main_fn, config, f"{row['log_path']}.out"))
                process.start()
                running[process.sentinel] = row, process, time.monotonic()
            for sentinel in connection.wait(list(running)):
                row, process, started = running.pop(sentinel)
                process.join()
                if process.exitcode == 0:
                    _ended(row, {"status": "completed", "seconds": time.monotonic() - started})
                else:
                    lines = Path(f"{row['log_path']}.out").read_text(errors="replace").splitlines() or [""]
                    _ended(row, {"status": "failed", "error": f"exit code {process.exitcode}: {lines[-1]}"})
    finally:
        for _, process, _ in running.values():
            process.terminate()
        for _, process, _ in running.values():
            process.join()


def _run(main_fn: Callable[[Any], Any], config: Any, output: str | None = None) -> float:
    """Run to the end; ``output`` is the file for what the process prints. Returns the seconds it took."""
    started = time.monotonic()
    if output is None:
        _call(main_fn, config)
    else:
        with open(output, "ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        sys.argv[1:] = []
        with entry.faults_in_one_line():
            _call(main_fn, config)
    return time.monotonic() - started


def _call(main_fn: Callable[[Any], Any], config: Any) -> None:
    result = main_fn(config)
    if inspect.isawaitable(result):
        asyncio.run(_wait(result))


async def _wait(awaitable: Any) -> None:
    await awaitable


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows; those of other runs of the same folder stay."""
    new = {row["log_path"] for row in rows}
    kept = [row for row in read_jsonl(path) if row["log_path"] not in new] if path.is_file() else []
    path.write_text("".join(json.dumps(row) + "\n" for row in [*kept, *rows]), encoding="utf-8")
