"""Cutting a batch into requests, and making one result of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ._encode import datum_bytes
from .types.datum import Datum
from .types.forward_backward import ForwardBackwardOutput

_HASH_MASK = (1 << 64) - 1


def plan_chunks(data: Sequence[Datum], *, max_bytes: int, max_datums: int) -> list[list[Datum]]:
    """Greedy cut in order: as many datums as fit; a datum over ``max_bytes`` goes alone."""
    chunks: list[list[Datum]] = []
    size = 0
    for datum in data:
        datum_size = datum_bytes(datum)
        if not chunks or len(chunks[-1]) >= max_datums or size + datum_size > max_bytes:
            chunks.append([])
            size = 0
        chunks[-1].append(datum)
        size += datum_size
    return chunks


def combine(results: Sequence[ForwardBackwardOutput]) -> ForwardBackwardOutput:
    """One result of the results of all chunks, in chunk order.

    Raises ValueError for a metric whose key is not ``name:reducer``.
    """
    weights = [len(result.loss_fn_outputs) for result in results]
    metrics: dict[str, float] = {}
    for key in results[0].metrics:
        _, reducer = _split_key(key)
        if not all(key in result.metrics for result in results):
            continue
        values = [result.metrics[key] for result in results]
        if reducer == "unique":
            metrics[key] = values[0]
            metrics.update({f"{key}_{index}": value for index, value in enumerate(values[1:], 1)})
        elif reducer in _REDUCERS:
            metrics[key] = _REDUCERS[reducer](values, weights)
    return ForwardBackwardOutput(
        loss_fn_output_type=results[0].loss_fn_output_type,
        loss_fn_outputs=[output for result in results for output in result.loss_fn_outputs],
        metrics=metrics,
    )


def _split_key(key: str) -> tuple[str, str]:
    parts = key.split(":")
    if len(parts) != 2:
        raise ValueError(f"metric {key!r} of the server is not of the form name:reducer")
    return parts[0], parts[1]


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _slack(values: Sequence[float], weights: Sequence[int]) -> float:
    return max(values) - _mean(values, weights)


def _hash2(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(int(value) & _HASH_MASK for value in values) & _HASH_MASK


_REDUCERS: dict[str, Callable[[Sequence[float], Sequence[int]], float]] = {
    "sum": lambda values, weights: sum(values),
    "min": lambda values, weights: min(values),
    "max": lambda values, weights: max(values),
    "mean": _mean,
    "slack": _slack,
    "hash2": _hash2,
}
