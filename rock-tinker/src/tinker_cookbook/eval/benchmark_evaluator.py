"""A benchmark as an evaluation during training."""

from __future__ import annotations

import tinker
from tinker_cookbook.eval.benchmarks import BenchmarkConfig, run_benchmark
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.renderers import Renderer


class BenchmarkEvaluator(SamplingClientEvaluator):
    """Metrics ``<benchmark>/score``, ``/num_errors``, ``/truncated`` and ``/pass@k``.

    ``config`` takes the place of the three numbers.
    """

    def __init__(
        self,
        benchmark_name: str,
        renderer: Renderer,
        max_examples: int | None = 100,
        max_tokens: int = 32768,
        temperature: float = 0.6,
        *,
        config: BenchmarkConfig | None = None,
    ) -> None:
        self.benchmark = self.name = benchmark_name
        self.renderer = renderer
        self.config = config or BenchmarkConfig(
            max_examples=max_examples, max_tokens=max_tokens, temperature=temperature
        )

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        result = await run_benchmark(self.benchmark, sampling_client, self.renderer, self.config)
        metrics = {
            "score": result.score,
            "num_errors": float(result.num_errors),
            "truncated": float(result.num_truncated),
        }
        metrics.update({f"pass@{k}": value for k, value in result.pass_at_k.items() if k > 1})
        return {f"{self.benchmark}/{key}": value for key, value in metrics.items()}
