"""Runs benchmarks: bounded concurrency, a deadline per example, results that can be resumed."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import tinker
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.eval.benchmarks.registry import get_benchmark
from tinker_cookbook.eval.benchmarks.types import (
    BenchmarkBuilder,
    BenchmarkConfig,
    BenchmarkExample,
    BenchmarkResult,
    Logs,
    Metrics,
    StoredTrajectory,
    StoredTurn,
)
from tinker_cookbook.exceptions import EvalError
from tinker_cookbook.renderers import Renderer, format_content_as_string
from tinker_cookbook.rl.rollouts import do_single_rollout

logger = logging.getLogger(__name__)
_SUMMARY = "summary.json"
_DEFAULT = BenchmarkConfig()


async def run_benchmark(
    benchmark: BenchmarkBuilder | str,
    sampling_client: tinker.SamplingClient,
    renderer: Renderer,
    config: BenchmarkConfig | None = _DEFAULT,
) -> BenchmarkResult:
    """Run one benchmark, by name or as it is. With ``save_dir``, attempts that are stored there are not made again."""
    config = config or BenchmarkConfig()
    builder = get_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    benchmark = builder.name
    if builder.requires_sandbox and config.sandbox_factory is None:
        raise EvalError(f"benchmark {benchmark} needs sandbox_factory")
    if builder.requires_judge and config.judge_sampling_client is None:
        raise EvalError(f"benchmark {benchmark} needs judge_sampling_client and judge_renderer")
    started = time.monotonic()
    examples = builder.make_examples(renderer, config)
    stored = (
        {(t.example_id, t.idx): t for t in load_trajectories(config.save_dir, benchmark)} if config.save_dir else {}
    )
    slots = asyncio.Semaphore(config.agent_concurrency if builder.multi_turn else config.concurrency)
    policy = TinkerTokenCompleter(sampling_client, config.max_tokens, config.temperature, config.context_window)

    async def attempt(example: BenchmarkExample, sample: int) -> StoredTrajectory:
        if (example.example_id, sample) in stored and stored[example.example_id, sample].error is None:
            return stored[example.example_id, sample]
        async with slots:
            trajectory = await _attempt(benchmark, example, sample, policy, renderer, config)
        if config.save_dir:
            _append(Path(config.save_dir) / benchmark / "trajectories.jsonl", trajectory)
        return trajectory

    attempts = await asyncio.gather(*(attempt(e, s) for e in examples for s in range(config.num_samples)))
    result = _aggregate(builder, attempts, config.num_samples, time.monotonic() - started)
    if config.save_dir:
        path = Path(config.save_dir) / benchmark / "result.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(result), indent=2), encoding="utf-8")
    return result


async def run_benchmarks(
    names: Sequence[str],
    sampling_client: tinker.SamplingClient,
    renderer: Renderer,
    config: BenchmarkConfig | None = _DEFAULT,
    parallel: bool = True,
) -> dict[str, BenchmarkResult]:
    """Run several benchmarks, at once or one after another. With ``save_dir``, ``summary.json`` has all results."""
    if parallel:
        done = await asyncio.gather(*(run_benchmark(name, sampling_client, renderer, config) for name in names))
        results = dict(zip(names, done, strict=True))
    else:
        results = {name: await run_benchmark(name, sampling_client, renderer, config) for name in names}
    if config is not None and config.save_dir:
        rows = {name: asdict(result) for name, result in results.items()}
        (Path(config.save_dir) / _SUMMARY).write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return results


def load_summary(save_dir: str | Path) -> dict[str, dict[str, Any]]:
    """Results of ``run_benchmarks`` by benchmark; empty without any."""
    path = Path(save_dir) / _SUMMARY
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def print_trajectory(traj: StoredTrajectory) -> None:
    """Print an attempt turn by turn."""
    print(f"--- [{traj.benchmark}#{traj.idx}] reward={traj.reward:.2f} ({traj.time_seconds:.1f}s) ---")
    for turn in traj.turns:
        print(f"  {'<<' if turn.role == 'assistant' else '>>'} [{turn.role}] {turn.content}")
    if traj.error is not None:
        print(f"  !! {traj.error}")
    print()


async def _attempt(
    benchmark: str,
    example: BenchmarkExample,
    sample: int,
    policy: TinkerTokenCompleter,
    renderer: Renderer,
    config: BenchmarkConfig,
) -> StoredTrajectory:
    started = time.monotonic()
    try:
        rollout = await asyncio.wait_for(do_single_rollout(policy, example.make_env()), config.timeout_seconds)
    except Exception as error:
        logger.warning("%s %s: %s: %s", benchmark, example.example_id, type(error).__name__, error)
        message = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - started
        return StoredTrajectory(sample, benchmark, example.example_id, [], 0.0, error=message, time_seconds=seconds)
    turns, metrics, logs = [], {}, {}
    for turn in rollout.transitions:
        prompt = [token for chunk in turn.ob.chunks for token in getattr(chunk, "tokens", [])]
        turns.append(StoredTurn("prompt", str(renderer.tokenizer.decode(prompt)), len(prompt)))
        answer, termination = renderer.parse_response(turn.ac.tokens)
        content = format_content_as_string(answer["content"])
        turns.append(StoredTurn("assistant", content, len(turn.ac.tokens), {"termination": termination.value}))
        metrics.update({key: float(value) for key, value in turn.metrics.items()})
        logs.update(turn.logs)
    metrics["truncated"] = float(any(turn.ac.stop_reason == "length" for turn in rollout.transitions))
    reward = sum(turn.reward for turn in rollout.transitions)
    if config.grade_fn is not None:
        reward = config.grade_fn(turns[-1].content if turns else "", logs)
        metrics["correct"] = float(reward > 0)
    seconds = time.monotonic() - started
    return StoredTrajectory(sample, benchmark, example.example_id, turns, reward, metrics, logs, None, seconds)


def _aggregate(
    builder: BenchmarkBuilder, attempts: Sequence[StoredTrajectory], num_samples: int, seconds: float
) -> BenchmarkResult:
    by_example: dict[str, list[bool]] = defaultdict(list)
    cut_off: set[str] = set()
    for trajectory in attempts:
        name, solved = trajectory.example_id, builder.is_correct(trajectory)
        if name not in by_example and not solved and trajectory.metrics.get("truncated", 0.0) > 0:
            cut_off.add(name)
        by_example[name].append(solved)
    failed = {t.example_id for t in attempts if t.error is not None}
    correct = sum(outcomes[0] for outcomes in by_example.values())
    pass_at = {
        k: float(np.mean([pass_at_k(len(outcomes), sum(outcomes), k) for outcomes in by_example.values()]))
        for k in range(1, num_samples + 1)
        if by_example
    }
    keys = sorted({key for trajectory in attempts for key in trajectory.metrics})
    metrics = {key: float(np.mean([t.metrics.get(key, 0.0) for t in attempts])) for key in keys}
    return BenchmarkResult(
        name=builder.name,
        score=pass_at.get(1, 0.0),
        num_examples=len(by_example),
        num_correct=correct,
        num_errors=len(failed),
        num_truncated=len(cut_off - failed),
        metrics=metrics,
        time_seconds=seconds,
        pass_at_k=pass_at,
    )


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that one of k attempts drawn from n is right: 1 − C(n−c, k) / C(n, k)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def _append(path: Path, trajectory: StoredTrajectory) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(trajectory.to_dict(), ensure_ascii=False, default=str) + "\n")


def load_result(save_dir: str | Path, benchmark_name: str) -> BenchmarkResult | None:
    """Stored result; None without one."""
    path = Path(save_dir) / benchmark_name / "result.json"
    if not path.is_file():
        return None
    return BenchmarkResult.from_dict(json.loads(path.read_text(encoding="utf-8")))


def load_trajectories(
    save_dir: str | Path,
    benchmark_name: str,
    correct_only: bool = False,
    incorrect_only: bool = False,
    errors_only: bool = False,
) -> list[StoredTrajectory]:
    """Stored attempts."""
    path = Path(save_dir) / benchmark_name / "trajectories.jsonl"
    if not path.is_file():
        return []
    rows = [StoredTrajectory.from_dict(json.loads(line)) for line in path.read_text().splitlines() if line.strip()]
    builder = get_benchmark(benchmark_name)
    if errors_only:
        return [row for row in rows if row.error is not None]
    if correct_only:
        return [row for row in rows if builder.is_correct(row)]
    if incorrect_only:
        return [row for row in rows if not builder.is_correct(row)]
    return rows


def regrade_trajectories(
    save_dir: str | Path,
    benchmark_name: str,
    grade_fn: Callable[[str, Logs], float],
    aggregate_fn: Callable[[list[float], list[Metrics]], BenchmarkResult] | None = None,
) -> BenchmarkResult:
    """Grade stored attempts again, by the text of their last answer and their logs; the files stay as they are.

    Attempts that ended with an error count as wrong. ``aggregate_fn`` makes the result of rewards and metrics.
    """
    attempts = load_trajectories(save_dir, benchmark_name)
    for attempt in attempts:
        answers = [turn.content for turn in attempt.turns if turn.role == "assistant"]
        attempt.reward = grade_fn(answers[-1] if answers else "", attempt.logs) if attempt.error is None else 0.0
        attempt.metrics["correct"] = float(attempt.reward > 0)
    if aggregate_fn is not None:
        return aggregate_fn([attempt.reward for attempt in attempts], [attempt.metrics for attempt in attempts])
    samples = max((attempt.idx for attempt in attempts), default=0) + 1
    seconds = sum(attempt.time_seconds for attempt in attempts)
    return _aggregate(get_benchmark(benchmark_name), attempts, samples, seconds)
