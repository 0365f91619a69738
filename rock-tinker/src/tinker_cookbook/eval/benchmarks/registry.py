"""Which benchmarks there are."""

from __future__ import annotations

import difflib

from tinker_cookbook.eval.benchmarks.types import BenchmarkBuilder
from tinker_cookbook.exceptions import BenchmarkNotFoundError

REGISTRY: dict[str, BenchmarkBuilder] = {}
"""Benchmarks by name."""


def register(builder: BenchmarkBuilder) -> BenchmarkBuilder:
    """Add a benchmark."""
    REGISTRY[builder.name] = builder
    return builder


def get_benchmark(name: str) -> BenchmarkBuilder:
    """A benchmark by name.

    Raises:
        BenchmarkNotFoundError: there is none of this name.
    """
    if name not in REGISTRY:
        near = difflib.get_close_matches(name, REGISTRY, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BenchmarkNotFoundError(f"no benchmark {name!r}.{hint} Known: {', '.join(sorted(REGISTRY))}")
    return REGISTRY[name]


def benchmark_names() -> list[str]:
    """All names, sorted."""
    return sorted(REGISTRY)
