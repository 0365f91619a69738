"""Benchmarks: registry and runner."""

from tinker_cookbook.eval.benchmarks import questions as _questions  # registers the benchmarks
from tinker_cookbook.eval.benchmarks.registry import REGISTRY, benchmark_names, get_benchmark, register
from tinker_cookbook.eval.benchmarks.runner import (
    load_result,
    load_summary,
    load_trajectories,
    pass_at_k,
    print_trajectory,
    regrade_trajectories,
    run_benchmark,
    run_benchmarks,
)
from tinker_cookbook.eval.benchmarks.types import (
    BenchmarkBuilder,
    BenchmarkConfig,
    BenchmarkExample,
    BenchmarkResult,
    BenchmarkResultDict,
    Logs,
    Metrics,
    PassAtKScores,
    StoredTrajectory,
    StoredTrajectoryDict,
    StoredTurn,
    StoredTurnDict,
    TurnRole,
)

QuestionBenchmark = _questions.QuestionBenchmark

__all__ = [
    "REGISTRY",
    "BenchmarkBuilder",
    "BenchmarkConfig",
    "BenchmarkExample",
    "BenchmarkResult",
    "BenchmarkResultDict",
    "Logs",
    "Metrics",
    "PassAtKScores",
    "QuestionBenchmark",
    "StoredTrajectory",
    "StoredTrajectoryDict",
    "StoredTurn",
    "StoredTurnDict",
    "TurnRole",
    "benchmark_names",
    "get_benchmark",
    "load_result",
    "load_summary",
    "load_trajectories",
    "pass_at_k",
    "print_trajectory",
    "register",
    "regrade_trajectories",
    "run_benchmark",
    "run_benchmarks",
]
