"""Benchmarks: registry and runner."""

from tinker_cookbook.eval.benchmarks import questions as _questions  # registers the benchmarks
from tinker_cookbook.eval.benchmarks.registry import benchmark_names, get_benchmark, register
from tinker_cookbook.eval.benchmarks.runner import (
    load_result,
    load_trajectories,
    pass_at_k,
    regrade_trajectories,
    run_benchmark,
    run_benchmarks,
)
from tinker_cookbook.eval.benchmarks.types import (
    BenchmarkBuilder,
    BenchmarkConfig,
    BenchmarkExample,
    BenchmarkResult,
    StoredTrajectory,
    StoredTurn,
)

QuestionBenchmark = _questions.QuestionBenchmark

__all__ = [
    "BenchmarkBuilder",
    "BenchmarkConfig",
    "BenchmarkExample",
    "BenchmarkResult",
    "QuestionBenchmark",
    "StoredTrajectory",
    "StoredTurn",
    "benchmark_names",
    "get_benchmark",
    "load_result",
    "load_trajectories",
    "pass_at_k",
    "register",
    "regrade_trajectories",
    "run_benchmark",
    "run_benchmarks",
]
