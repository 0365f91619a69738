"""Validation at the door: what a loss or sample request must be before it may share a batch with others.

Every refusal is a BadRequest whose message names the field, the value, the limit and the fix.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..config import LimitSection
from ..errors import BadRequest
from ..loss_catalog import LOSSES, LossInput
from ..runtime.roles import Array, CsrArray, Datum, LossRequest, ModelCard, SampleRequest

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@=+-]{0,199}")
_MAX_TOP_K = 1024
MIN_TTL, MAX_TTL = 1, 10 * 366 * 24 * 3600


def nearest(value: str, known: Iterable[str]) -> str:
    """A hint at the end of a refusal: the nearest known name, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(value, names, 1, 0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"


def check_name(name: str | None, field: str = "path") -> str:
    """A checkpoint name: one path segment of plain characters."""
    if not name:
        raise BadRequest(f"{field} is empty; give the checkpoint a name")
    if not _NAME.fullmatch(name) or ".." in name:
        raise BadRequest(
            f"{field} {name[:80]!r} is no checkpoint name: use up to 200 letters, digits and _ . : @ = + - "
            "(no slash, no leading dot or dash)"
        )
    return name


def check_ttl(seconds: int | None) -> int | None:
    """A time to live in seconds, or None for ever."""
    if seconds is not None and not MIN_TTL <= seconds <= MAX_TTL:
        raise BadRequest(f"ttl_seconds {seconds} must lie between {MIN_TTL} and {MAX_TTL} (ten years)")
    return seconds


def check_loss_request(
    request: LossRequest, card: ModelCard, limits: LimitSection, custom: Mapping[str, Any] | None
) -> None:
    """Refuses what the trainer could not compute. ``custom``: the upload of the custom loss that is named, if any."""
    inputs, options = _loss_entry(request, custom)
    if not request.data:
        raise BadRequest("data is empty; send at least one datum")
    if len(request.data) > limits.datums_per_request:
        raise BadRequest(
            f"data holds {len(request.data)} datums; at most {limits.datums_per_request} go in one request"
        )
    _check_config(request, options)
    for i, datum in enumerate(request.data):
        _check_tokens(datum.tokens, f"data[{i}].model_input", card)
        _check_inputs(datum, f"data[{i}].loss_fn_inputs", request.loss_fn, inputs, card)


def _loss_entry(
    request: LossRequest, custom: Mapping[str, Any] | None
) -> tuple[Mapping[str, LossInput], Mapping[str, float | str]]:
    if custom is not None:
        declared = {item["name"]: item["rank"] for item in custom["inputs"] if item["name"] != "logprobs"}
        inputs = {name: LossInput("float32", max_rank=rank) for name, rank in declared.items()}
        inputs["target_tokens"] = LossInput("int64", max_rank=2)
        inputs.setdefault("weights", LossInput("float32", required=False, max_rank=2))
        return inputs, {"loss_id": ""}
    if request.loss_fn == "stable_reinforce":
        raise BadRequest(
            "loss_fn 'stable_reinforce' has no published formula and is not served; use importance_sampling, ppo, cispo "
            "or gspo, or have the server compute a substitute (losses.stable_reinforce: truncated_importance_sampling "
            "in its runtime.yaml)"
        )
    entry = LOSSES.get(request.loss_fn)
    if entry is None:
        raise BadRequest(f"loss_fn {request.loss_fn!r} is not known; {nearest(request.loss_fn, [*LOSSES, 'custom'])}")
    return entry.inputs, entry.config


def _check_config(request: LossRequest, options: Mapping[str, float | str]) -> None:
    config = request.config
    for key, value in config.items():
        if key not in options:
            fix = nearest(key, options) if options else "it takes none"
            raise BadRequest(f"loss_fn_config key {key!r} is not known to loss_fn {request.loss_fn!r}; {fix}")
        wants_text = isinstance(options[key], str)
        if wants_text != isinstance(value, str):
            raise BadRequest(f"loss_fn_config[{key!r}] must be a {'string' if wants_text else 'number'}, not {value!r}")
        if not isinstance(value, str) and (not math.isfinite(value) or value < 0):
            raise BadRequest(f"loss_fn_config[{key!r}] is {value}; it must be a finite number from 0")
    if "clip_low_threshold" in options:
        low = float(config.get("clip_low_threshold", options["clip_low_threshold"]))
        high = float(config.get("clip_high_threshold", options["clip_high_threshold"]))
        if low > high:
            raise BadRequest(
                f"clip_low_threshold {low} lies above clip_high_threshold {high}; thresholds are absolute ratios "
                "such as 0.8 and 1.2"
            )


def _check_tokens(tokens: Array, field: str, card: ModelCard) -> None:
    if tokens.size == 0:
        raise BadRequest(f"{field} has no tokens")
    if tokens.size > card.max_context_length:
        raise BadRequest(f"{field} has {tokens.size} tokens; {card.name} takes at most {card.max_context_length}")
    _check_vocabulary(tokens, field, card)


def _check_vocabulary(tokens: Array, field: str, card: ModelCard) -> None:
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= card.vocab_size:
        bad = low if low < 0 else high
        mask = "; to mask a position give it weight or advantage 0" if bad == -100 else ""
        raise BadRequest(f"{field} holds token id {bad}; ids of {card.name} lie in 0..{card.vocab_size - 1}{mask}")


def _check_inputs(datum: Datum, field: str, loss: str, inputs: Mapping[str, LossInput], card: ModelCard) -> None:
    for name in datum.inputs:
        if name not in inputs:
            raise BadRequest(f"{field} has {name!r}, which loss_fn {loss!r} does not take; {nearest(name, inputs)}")
    for name, wanted in inputs.items():
        value = datum.inputs.get(name)
        if value is None:
            if wanted.required:
                raise BadRequest(f"{field} lacks {name!r}, which loss_fn {loss!r} needs ({wanted.dtype})")
            continue
        _check_input(value, f"{field}[{name!r}]", wanted, datum.tokens.size)
        if name == "target_tokens":
            ids = value.values if isinstance(value, CsrArray) else value
            if ids.size:
                _check_vocabulary(ids, f"{field}[{name!r}]", card)
    targets, weights = datum.inputs.get("target_tokens"), datum.inputs.get("weights")
    if targets is not None and weights is not None and targets.shape != weights.shape:
        raise BadRequest(
            f"{field}['weights'] has shape {list(weights.shape)}, target_tokens {list(targets.shape)}; they must agree"
        )


def _check_input(value: Array | CsrArray, field: str, wanted: LossInput, length: int) -> None:
    values = value.values if isinstance(value, CsrArray) else value
    kind = "float32" if values.dtype.kind == "f" else "int64"
    if kind != wanted.dtype:
        raise BadRequest(f"{field} has dtype {kind}; it must be {wanted.dtype}")
    if kind == "float32" and values.size and not np.isfinite(values).all():
        raise BadRequest(f"{field} holds NaN or infinity; mask such positions with zero weight or advantage instead")
    shape = tuple(value.shape)
    if wanted.max_rank == 0:
        if values.size != 1:
            raise BadRequest(f"{field} has shape {list(shape)}; it must be a single number")
        return
    if len(shape) not in range(1, wanted.max_rank + 1) or shape[0] != length or (len(shape) == 2 and shape[1] < 1):
        allowed = f"({length},)" + (f" or ({length}, K)" if wanted.max_rank == 2 else "")
        raise BadRequest(f"{field} has shape {list(shape)}; model_input has {length} tokens, so it must be {allowed}")


def check_sample_request(request: SampleRequest, card: ModelCard, limits: LimitSection) -> None:
    """Refuses what the sampler could not serve."""
    _check_tokens(request.tokens, "prompt", card)
    length = int(request.tokens.size)
    if not 1 <= request.num_samples <= limits.samples_per_request:
        raise BadRequest(f"num_samples {request.num_samples} must lie between 1 and {limits.samples_per_request}")
    room = card.max_context_length - length
    if request.max_tokens is not None:
        if request.max_tokens < 0:
            raise BadRequest(f"sampling_params.max_tokens {request.max_tokens} must not be negative")
        # compute_logprobs asks for one token after a prompt of any length that can be read.
        if request.max_tokens > max(room, 1):
            raise BadRequest(
                f"prompt of {length} tokens and max_tokens {request.max_tokens} exceed the context of "
                f"{card.max_context_length}; ask for at most {room}"
            )
    _check_drawing(request, card)
    most = min(_MAX_TOP_K, card.vocab_size - 1)
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        value = getattr(request, name)
        if not 0 <= value <= most:
            raise BadRequest(f"{name} {value} must lie between 0 and {most}")
    last_n = request.prompt_logprobs_last_n
    if last_n is not None:
        if not request.prompt_logprobs:
            raise BadRequest("prompt_logprobs_last_n needs prompt_logprobs: true")
        if not 1 <= last_n <= max(length - 1, 1):
            raise BadRequest(f"prompt_logprobs_last_n {last_n} must lie between 1 and {length - 1}")
    if request.target_prompt_logprobs is not None:
        _check_targets(request.target_prompt_logprobs, length, card)


def _check_drawing(request: SampleRequest, card: ModelCard) -> None:
    if not math.isfinite(request.temperature) or request.temperature < 0:
        raise BadRequest(
            f"sampling_params.temperature {request.temperature} must be a finite number from 0 (0: greedy)"
        )
    if not 0 < request.top_p <= 1:
        raise BadRequest(f"sampling_params.top_p {request.top_p} must lie in (0, 1]")
    if request.top_k != -1 and not 1 <= request.top_k < 2**31:
        raise BadRequest(f"sampling_params.top_k {request.top_k} must be -1 (no limit) or a number from 1")
    if request.seed is not None and not -(2**63) <= request.seed < 2**63:
        raise BadRequest(f"sampling_params.seed {request.seed} does not fit 64 bits")
    if len(request.stop_strings) > 64 or any(len(text) > 1024 for text in request.stop_strings):
        raise BadRequest("sampling_params.stop takes up to 64 strings of up to 1024 characters")
    if request.stop_token_ids:
        if len(request.stop_token_ids) > 4096:
            raise BadRequest("sampling_params.stop takes up to 4096 token ids")
        if bad := [token for token in request.stop_token_ids if not 0 <= token < card.vocab_size]:
            raise BadRequest(
                f"sampling_params.stop holds token id {bad[0]}; ids of {card.name} lie in 0..{card.vocab_size - 1}"
            )


def _check_targets(targets: Array | CsrArray, length: int, card: ModelCard) -> None:
    field = "target_prompt_logprobs"
    values = targets.values if isinstance(targets, CsrArray) else targets
    if values.dtype.kind == "f":
        raise BadRequest(f"{field} has dtype float32; it must be int64")
    shape = tuple(targets.shape)
    if len(shape) != 2 or shape[0] != length - 1 or not 1 <= shape[1] <= _MAX_TOP_K:
        raise BadRequest(
            f"{field} has shape {list(shape)}; the prompt has {length} tokens, so it must be [{length - 1}, K] "
            f"with K up to {_MAX_TOP_K}"
        )
    if values.size and (int(values.min()) < -1 or int(values.max()) >= card.vocab_size):
        raise BadRequest(f"{field} must hold -1 (skip) or token ids in 0..{card.vocab_size - 1}")
