"""Token counts of a run. A self-hosted server has no price list; rates can be given by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one step."""

    sampled: int = 0
    prefill_cached: int = 0
    prefill_uncached: int = 0
    trained: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def metrics(self, prefix: str = "tokens") -> dict[str, float]:
        """``tokens/sampled`` and so on."""
        return {f"{prefix}/{f.name}": float(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True)
class TokenCostRates:
    """US dollars per million tokens."""

    prefill_usd_per_million: float
    cached_prefill_usd_per_million: float
    sample_usd_per_million: float
    train_usd_per_million: float

    def estimate_usd(self, usage: TokenUsage) -> float:
        """Cost of a usage."""
        parts = (
            (usage.prefill_uncached, self.prefill_usd_per_million),
            (usage.prefill_cached, self.cached_prefill_usd_per_million),
            (usage.sampled, self.sample_usd_per_million),
            (usage.trained, self.train_usd_per_million),
        )
        return sum(tokens * rate for tokens, rate in parts) / 1e6


@dataclass
class CostTracker:
    """Adds up usage over the steps of a run."""

    rates: TokenCostRates | None = None
    total: TokenUsage = field(default_factory=TokenUsage)
    discarded: TokenUsage = field(default_factory=TokenUsage)

    def record_step(self, usage: TokenUsage) -> dict[str, float]:
        """Metrics of a step and the running totals."""
        self.total += usage
        metrics = {**usage.metrics(), **self.total.metrics("tokens/cumulative")}
        if self.rates is not None:
            metrics["cost/step_usd"] = self.rates.estimate_usd(usage)
            metrics["cost/cumulative_usd"] = self.rates.estimate_usd(self.total)
        return metrics

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Go on from the running totals of a run's last row of metrics."""
        prefix = "tokens/cumulative/"
        for row in rows:
            if f"{prefix}trained" in row:
                self.total = TokenUsage(**{f.name: int(row.get(prefix + f.name, 0)) for f in fields(TokenUsage)})

    def record_discarded_sampling(self, usage: TokenUsage) -> None:
        """Rollouts that were made and will not be trained on."""
        self.discarded += usage

    def cumulative_metrics(self) -> dict[str, float]:
        """Running totals, with discarded tokens."""
        return {**self.total.metrics("tokens/cumulative"), **self.discarded.metrics("tokens/discarded")}
