"""What sampling returns. Arrays are the storage, lists are made when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .sampling import StopReason
from .tensor_data import TensorData
from .topk_logprobs import TopkLogprobs, topk_to_lists


@dataclass(frozen=True)
class PromptAltTokens:
    """The k likeliest tokens at each prompt position but the first; both tensors [prompt length - 1, k]."""

    tokens: TensorData
    logprobs: TensorData


@dataclass(frozen=True)
class SampledSequence:
    """One completion. ``sequence_id`` names it in provenance spans; ``tokens`` includes a stop token if one ended it."""

    stop_reason: StopReason
    sequence_id: str
    tokens_np: np.ndarray | None = field(default=None, repr=False, compare=False)
    logprobs_np: np.ndarray | None = field(default=None, repr=False, compare=False)
    topk_logprobs_np: TopkLogprobs | None = field(default=None, repr=False, compare=False)
    _tokens_list: list[int] | None = field(default=None, repr=False, compare=False)
    _logprobs_list: list[float] | None = field(default=None, repr=False, compare=False)
    _topk_logprobs_list: list[list[tuple[int, float]] | None] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def tokens(self) -> list[int]:
        """Sampled token ids."""
        if self._tokens_list is not None:
            return self._tokens_list
        return [] if self.tokens_np is None else self.tokens_np.tolist()

    @cached_property
    def logprobs(self) -> list[float] | None:
        """Log probability of each sampled token, before temperature and truncation."""
        if self._logprobs_list is not None:
            return self._logprobs_list
        return None if self.logprobs_np is None else self.logprobs_np.tolist()

    @cached_property
    def topk_logprobs(self) -> list[list[tuple[int, float]] | None] | None:
        """The k likeliest tokens at each sampled position."""
        if self._topk_logprobs_list is not None:
            return self._topk_logprobs_list
        return None if self.topk_logprobs_np is None else topk_to_lists(self.topk_logprobs_np)


@dataclass(frozen=True)
class SampleResponse:
    """All completions of one request, and what was asked about its prompt."""

    sequences: Sequence[SampledSequence]
    prompt_logprobs_np: np.ndarray | None = field(default=None, repr=False, compare=False)
    topk_prompt_logprobs_np: TopkLogprobs | None = field(default=None, repr=False, compare=False)
    target_prompt_logprobs: TensorData | None = None
    prompt_cache_hit_tokens: int = 0
    prompt_alt_tokens: PromptAltTokens | None = None
    _prompt_logprobs_list: list[float | None] | None = field(default=None, repr=False, compare=False)
    _topk_prompt_logprobs_list: list[list[tuple[int, float]] | None] | None = field(
        default=None, repr=False, compare=False
    )

    @cached_property
    def prompt_logprobs(self) -> list[float | None] | None:
        """Log probability of each prompt token; None at the first and wherever the server did not score."""
        if self._prompt_logprobs_list is not None:
            return self._prompt_logprobs_list
        if self.prompt_logprobs_np is None:
            return None
        return [None if value != value else value for value in self.prompt_logprobs_np.tolist()]

    @cached_property
    def topk_prompt_logprobs(self) -> list[list[tuple[int, float]] | None] | None:
        """The k likeliest tokens at each prompt position; None where there are none."""
        if self._topk_prompt_logprobs_list is not None:
            return self._topk_prompt_logprobs_list
        return None if self.topk_prompt_logprobs_np is None else topk_to_lists(self.topk_prompt_logprobs_np)
