"""Evaluation during and after training."""

from tinker_cookbook.eval.benchmark_evaluator import BenchmarkEvaluator
from tinker_cookbook.eval.benchmarks import (
    REGISTRY,
    BenchmarkBuilder,
    BenchmarkConfig,
    BenchmarkResult,
    StoredTrajectory,
    print_trajectory,
    register,
    run_benchmark,
    run_benchmarks,
)
from tinker_cookbook.eval.evaluators import (
    Evaluator,
    EvaluatorBuilder,
    SamplingClientEvaluator,
    SamplingClientEvaluatorBuilder,
    TrainingClientEvaluator,
)
from tinker_cookbook.stores.eval_store import EvalStore, RunMetadata

__all__ = [
    "BenchmarkBuilder",
    "BenchmarkConfig",
    "BenchmarkEvaluator",
    "BenchmarkResult",
    "EvalStore",
    "Evaluator",
    "EvaluatorBuilder",
    "REGISTRY",
    "RunMetadata",
    "SamplingClientEvaluator",
    "SamplingClientEvaluatorBuilder",
    "StoredTrajectory",
    "TrainingClientEvaluator",
    "print_trajectory",
    "register",
    "run_benchmark",
    "run_benchmarks",
]
