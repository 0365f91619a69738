"""Refuses sampling requests that cannot be served, before they join a batch."""

from __future__ import annotations

import numpy as np

from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.roles import CsrArray, RuntimeFault, SampleRequest


def check_request(request: SampleRequest, base: BaseModel) -> int:
    """Checks a request; returns its max_tokens with the context as default.

    Raises RuntimeFault (user) that names field, value and limit.
    """
    vocab, context = base.architecture.vocab_size, base.context
    tokens = np.asarray(request.tokens)
    size = len(tokens)
    if not 1 <= size <= context:
        raise RuntimeFault(f"prompt has {size} tokens; between 1 and {context} are possible", "user")
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab:
        bad = tokens[(tokens < 0) | (tokens >= vocab)][0]
        raise RuntimeFault(f"prompt: token id {int(bad)} is outside the vocabulary of {vocab}", "user")
    left = context - size
    if request.max_tokens is None:
        max_tokens = max(left, 1)
    else:
        max_tokens = request.max_tokens
        only_scores = size == context and max_tokens == 1
        if max_tokens < 0 or (max_tokens > left and not only_scores):
            raise RuntimeFault(
                f"max_tokens {max_tokens} with a prompt of {size} tokens is beyond the context of {context}; "
                f"at most {left} are possible",
                "user",
            )
    _check_numbers(request, vocab)
    _check_targets(request, size, vocab)
    return max_tokens


def _check_numbers(request: SampleRequest, vocab: int) -> None:
    if request.num_samples < 1:
        raise RuntimeFault(f"num_samples {request.num_samples} must be at least 1", "user")
    if not (np.isfinite(request.temperature) and request.temperature >= 0):
        raise RuntimeFault(f"temperature {request.temperature} must be a finite number >= 0", "user")
    if not 0 < request.top_p <= 1:
        raise RuntimeFault(f"top_p {request.top_p} must be above 0 and at most 1", "user")
    if request.top_k == 0 or request.top_k < -1:
        raise RuntimeFault(f"top_k {request.top_k} must be positive, or -1 for no limit", "user")
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        value = getattr(request, name)
        if not 0 <= value < vocab:
            raise RuntimeFault(f"{name} {value} must be between 0 and {vocab - 1}", "user")
    last = request.prompt_logprobs_last_n
    if last is not None and (last < 1 or not request.prompt_logprobs):
        raise RuntimeFault(f"prompt_logprobs_last_n {last} must be at least 1, with prompt_logprobs on", "user")


def _check_targets(request: SampleRequest, size: int, vocab: int) -> None:
    targets = request.target_prompt_logprobs
    if targets is None:
        return
    shape = tuple(targets.shape)
    if len(shape) != 2 or shape[0] != size - 1:
        raise RuntimeFault(f"target_prompt_logprobs has shape {shape}; ({size - 1}, K) is needed", "user")
    values = np.asarray(targets.values if isinstance(targets, CsrArray) else targets)
    if values.size and (int(values.min()) < -1 or int(values.max()) >= vocab):
        raise RuntimeFault(f"target_prompt_logprobs holds ids outside -1 .. {vocab - 1}", "user")
    if isinstance(targets, CsrArray):
        crow, col = np.asarray(targets.crow_indices), np.asarray(targets.col_indices)
        sound = crow.shape == (shape[0] + 1,) and crow[0] == 0 and crow[-1] == len(col) == len(values)
        if not sound or (np.diff(crow) < 0).any() or (len(col) and (col.min() < 0 or col.max() >= shape[1])):
            raise RuntimeFault("target_prompt_logprobs: the CSR indices are malformed", "user")
