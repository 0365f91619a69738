"""Temperatures above vLLM's largest: what is missing is divided out of the logits first. Loaded by vLLM, by its name."""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

KEY = "tinker_heat"
"""Name of the divisor among a request's extra arguments."""


class Heat(AdapterLogitsProcessor):
    """Divides the logits of requests that say so."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """The replica writes what is read here."""

    def is_argmax_invariant(self) -> bool:
        """A greedy request never asks for it."""
        return True

    def new_req_logits_processor(self, params: Any) -> Any:
        """What divides, or None."""
        divisor = (params.extra_args or {}).get(KEY)
        return None if divisor is None else lambda output_ids, logits: logits / divisor
