"""Where the positions of a datum come from: runs of prompt tokens and of sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass


def _check(span: PromptProvenanceSpan | SampledProvenanceSpan) -> None:
    for name in ("offset", "length"):
        value = getattr(span, name)
        if value < 0:
            raise ValueError(f"{type(span).__name__}.{name} must be >= 0, got {value}")


@dataclass(frozen=True, kw_only=True)
class PromptProvenanceSpan:
    """``length`` positions of the prompt of sequence ``sequence_id``, from ``offset`` on."""

    sequence_id: str
    offset: int = 0
    length: int

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class SampledProvenanceSpan:
    """``length`` sampled tokens of sequence ``sequence_id``, from ``offset`` on."""

    sequence_id: str
    offset: int = 0
    length: int

    def __post_init__(self) -> None:
        _check(self)


ProvenanceSpans = list[PromptProvenanceSpan | SampledProvenanceSpan]
