"""Small list and dict tools."""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, overload

from tinker_cookbook.exceptions import ConfigurationError

T = TypeVar("T")


@contextmanager
def timed(key: str, metrics: dict[str, Any]) -> Iterator[None]:
    """Store the seconds of the block as ``time/<key>``."""
    start = time.perf_counter()
    try:
        yield
    finally:
        metrics[f"time/{key}"] = time.perf_counter() - start


def safezip(*args: Iterable[Any], **kwargs: Any) -> zip[tuple[Any, ...]]:
    """``zip`` that raises ValueError when one is longer than another."""
    return zip(*args, strict=True, **kwargs)


def dict_mean(list_of_dicts: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Mean of every key over the dicts that have a number for it."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in list_of_dicts:
        for key, value in row.items():
            if value is not None:
                values[key].append(float(value))
    return {key: sum(found) / len(found) for key, found in values.items()}


def all_same(xs: Sequence[Any]) -> bool:
    """Whether all items are equal."""
    return all(x == xs[0] for x in xs)


def lookup_func(path_to_func: str, default_module: str | None = None) -> Callable[..., Any]:
    """The function named ``module:function`` (or ``function`` in the default module).

    Raises:
        ConfigurationError: there is no such function.
    """
    module_name, _, name = path_to_func.rpartition(":")
    module_name = module_name or (default_module or "")
    if not module_name:
        raise ConfigurationError(f"{path_to_func!r}: write module:function")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{path_to_func!r} cannot be loaded: {error}") from error


def split_list(lst: Sequence[T], num_splits: int) -> list[list[T]]:
    """Consecutive parts whose sizes differ by at most one.

    Raises:
        ConfigurationError: more parts than items.
    """
    if not 1 <= num_splits <= len(lst):
        raise ConfigurationError(f"num_splits={num_splits}: must be between 1 and the number of items ({len(lst)})")
    edges = [i * len(lst) // num_splits for i in range(num_splits + 1)]
    return [list(lst[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def concat_lists(list_of_lists: Iterable[Iterable[T]]) -> list[T]:
    """All items in order."""
    return [item for items in list_of_lists for item in items]


def not_none(x: T | None) -> T:
    """The value, which must not be None."""
    if x is None:
        raise ValueError("value is None")
    return x


@overload
def iteration_dir(log_path: str | Path, step: int) -> Path: ...
@overload
def iteration_dir(log_path: None, step: int) -> None: ...


def iteration_dir(log_path: str | Path | None, step: int) -> Path | None:
    """Folder of the files of one training iteration; None for a run without a folder."""
    return None if log_path is None else Path(log_path) / f"iteration_{step:06d}"
