"""Weighted sequences to data, and the numbers that are read from results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

import tinker
from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.rl.data_processing import flat_tokens
from tinker_cookbook.tokenizer_utils import Tokenizer

Reduction: TypeAlias = Literal["mean", "none"]


def _floats(values: Any) -> np.ndarray:
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    elif hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def compute_mean_nll(logprobs_list: Sequence[Any], weights_list: Sequence[Any]) -> float:
    """Σ −logprob·weight / Σ weight over all data; NaN without any weight."""
    total = weight = 0.0
    for logprobs, weights in zip(logprobs_list, weights_list, strict=True):
        lp, w = _floats(logprobs), _floats(weights)
        total -= float((lp * w).sum())
        weight += float(w.sum())
    return total / weight if weight else math.nan


def compute_bpb(
    logprobs_list: Sequence[Any], weights_list: Sequence[Any], target_tokens_list: Sequence[Any], tokenizer: Tokenizer
) -> float:
    """Bits per UTF-8 byte of the trained text: Σ −logprob / (ln 2 · bytes).

    Special tokens (in the tokenizer's ``all_special_ids``, or by its ``is_special_token``) count neither way; bytes are
    those of each contiguous run of trained tokens, decoded together.
    """
    known = set(getattr(tokenizer, "all_special_ids", []) or [])
    asked: Callable[[int], bool] = getattr(tokenizer, "is_special_token", known.__contains__)
    nats, size = 0.0, 0
    for logprobs, weights, targets in zip(logprobs_list, weights_list, target_tokens_list, strict=True):
        lp, w = _floats(logprobs), _floats(weights)
        tokens = np.asarray(targets.to_numpy() if hasattr(targets, "to_numpy") else targets).astype(np.int64)
        if tokens.ndim != 1:
            continue  # soft targets have no text of their own
        run: list[int] = []
        for token, value, weight in zip(tokens.tolist(), lp, w, strict=True):
            if weight > 0 and not (token in known or asked(token)):
                run.append(token)
                nats -= float(value)
                continue
            size += len(str(tokenizer.decode(run)).encode()) if run else 0
            run = []
        size += len(str(tokenizer.decode(run)).encode()) if run else 0
    return nats / (math.log(2) * size) if size else math.nan


def create_rightshifted_model_input_and_leftshifted_targets(
    chunks: Sequence[Any],
) -> tuple[tinker.ModelInput, list[int]]:
    """All but the last token as input, all but the first as targets. The last chunk with tokens must be text.

    Raises:
        DataValidationError: there are less than two tokens, or nothing but an image at the end.
    """
    chunks = list(chunks)
    while chunks and chunks[-1].length == 0:
        chunks.pop()
    if sum(chunk.length for chunk in chunks) < 2:
        raise DataValidationError("a sequence needs at least two tokens: one that is given and one to predict")
    if not isinstance(chunks[-1], tinker.EncodedTextChunk):
        raise DataValidationError("a sequence must end with text: nothing is predicted after an image")
    last = list(chunks[-1].tokens)
    inputs = list(chunks[:-1])
    if len(last) > 1:
        inputs.append(tinker.EncodedTextChunk(tokens=last[:-1]))
    return tinker.ModelInput(chunks=inputs), flat_tokens(chunks)[1:]


def datum_from_model_input_weights(
    model_input: tinker.ModelInput, weights: Any, max_length: int | None = None, reduction: Reduction = "none"
) -> tinker.Datum:
    """Datum for cross_entropy from tokens and one weight per token.

    Longer sequences are cut at their end: text in the middle of a chunk, other chunks as a whole; a chunk of another
    kind at the end is dropped. ``reduction="mean"``: weights are divided by their sum, so that each example counts 1.

    Raises:
        DataValidationError: the weights do not fit, or nothing is left.
    """
    if reduction not in ("mean", "none"):
        raise DataValidationError(f"reduction={reduction!r} is unknown; use mean or none")
    weight_N = np.asarray(_floats(weights), dtype=np.float32)
    if weight_N.shape != (model_input.length,):
        raise DataValidationError(f"weights of shape {weight_N.shape} for {model_input.length} tokens")
    chunks: list[Any] = []
    room = model_input.length if max_length is None else max_length
    for chunk in model_input.chunks:
        if chunk.length <= room:
            chunks.append(chunk)
            room -= chunk.length
            continue
        if isinstance(chunk, tinker.EncodedTextChunk) and room > 0:
            chunks.append(tinker.EncodedTextChunk(tokens=list(chunk.tokens)[:room]))
        break
    while chunks and not isinstance(chunks[-1], tinker.EncodedTextChunk):
        chunks.pop()
    length = sum(chunk.length for chunk in chunks)
    if length < 2:
        raise DataValidationError(f"only {length} tokens are left of {model_input.length} (max_length={max_length})")
    inputs, targets = create_rightshifted_model_input_and_leftshifted_targets(chunks)
    kept = weight_N[1:length]
    if reduction == "mean" and kept.sum() > 0:
        kept = kept / kept.sum()
    return tinker.Datum(
        model_input=inputs,
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(np.asarray(targets, dtype=np.int64)),
            "weights": tinker.TensorData.from_numpy(kept.astype(np.float32)),
        },
    )
