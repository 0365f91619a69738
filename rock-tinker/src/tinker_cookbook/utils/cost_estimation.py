"""Token counts of a run and, with a price list, what they cost.

A self-hosted server has no prices, so a list is only read from where one is named: a JSON file whose entries have
``tinker_id`` and the prices ``prefill``, ``cached_prefill``, ``sample`` and ``train`` in US dollars per million tokens.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

TOKENS_PER_MILLION = 1_000_000
PRICING_URL = os.environ.get("TINKER_PRICING_URL", "")
"""Path or URL of the price list."""
_PRICES = ("prefill", "cached_prefill", "sample", "train")


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
        """``<prefix>/sampled`` and so on."""
        return {f"{prefix}/{f.name}": getattr(self, f.name) for f in fields(self)}


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
        return sum(tokens * rate for tokens, rate in parts) / TOKENS_PER_MILLION


class CostTracker:
    """Adds up usage over the steps of a run. Discarded tokens are part of the running totals, and counted again apart."""

    def __init__(
        self,
        rates: TokenCostRates | None = None,
        *,
        cumulative: TokenUsage = TokenUsage(),
        discarded: TokenUsage = TokenUsage(),
    ) -> None:
        self.rates = rates
        self.cumulative = cumulative
        self.discarded = discarded
        self.step = TokenUsage()

    def record_step(self, usage: TokenUsage) -> dict[str, float]:
        """Begin a step with this usage. Returns the metrics of the step and the running totals."""
        self.step = TokenUsage()
        return self.extend_step(usage)

    def extend_step(self, usage: TokenUsage) -> dict[str, float]:
        """More usage of the step that ``record_step`` began. Returns its metrics so far and the running totals."""
        self.step += usage
        self.cumulative += usage
        metrics = {**self.step.metrics(), **self.cumulative.metrics("tokens/cumulative")}
        return {**metrics, **self._costs(step=self.step, cumulative=self.cumulative)}

    def record_discarded_sampling(self, usage: TokenUsage) -> None:
        """Rollouts that were made and will not be trained on."""
        self.discarded += usage
        self.cumulative += usage

    def cumulative_metrics(self) -> dict[str, float]:
        """Running totals, with discarded tokens."""
        metrics = {**self.cumulative.metrics("tokens/cumulative"), **self.discarded.metrics("tokens/discarded")}
        return {**metrics, **self._costs(cumulative=self.cumulative, discarded=self.discarded)}

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Go on from the running totals of a run's last row of metrics."""
        prefix = "tokens/cumulative/"
        for row in rows:
            if f"{prefix}trained" in row:
                self.cumulative = TokenUsage(**{f.name: int(row.get(prefix + f.name, 0)) for f in fields(TokenUsage)})

    def _costs(self, **usages: TokenUsage) -> dict[str, float]:
        if self.rates is None:
            return {}
        return {f"cost/{name}_usd": self.rates.estimate_usd(usage) for name, usage in usages.items()}


def rates_from_pricing_entry(entry: Mapping[str, object]) -> TokenCostRates | None:
    """Rates of an entry of a price list, whose prices are numbers or texts such as "$1.50"; None if one is missing."""
    try:
        return TokenCostRates(*(float(str(entry[key]).strip().lstrip("$")) for key in _PRICES))
    except (KeyError, ValueError):
        return None


def load_model_pricing(*, url: str = PRICING_URL, timeout: float = 5.0) -> list[dict[str, object]] | None:
    """Entries of a price list (a path or URL); None where there is none. A list that was read is not read again."""
    if not url:
        return None
    try:
        return _read_list(url, timeout)
    except (OSError, ValueError) as error:
        logger.warning("price list %s cannot be read: %s", url, error)
        return None


@functools.lru_cache(maxsize=8)
def _read_list(url: str, timeout: float) -> list[dict[str, object]]:
    if "://" in url:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            text = answer.read().decode()
    else:
        text = Path(url).expanduser().read_text(encoding="utf-8")
    rows = json.loads(text)
    if not isinstance(rows, list):
        raise ValueError(f"expected a list, got {type(rows).__name__}")
    return [row for row in rows if isinstance(row, dict)]


def fetch_model_pricing(model_name: str, *, url: str = PRICING_URL, timeout: float = 5.0) -> TokenCostRates | None:
    """Rates of a model by a price list; None, with a warning, if it is not there."""
    entries = load_model_pricing(url=url, timeout=timeout)
    if entries is None:
        return None
    for entry in entries:
        if entry.get("tinker_id") == model_name:
            return rates_from_pricing_entry(entry)
    logger.warning("Model %s is not listed in %s; logging token counts only", model_name, url)
    return None
