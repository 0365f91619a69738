"""From requests to tensors: every datum is checked and brought to one form before it may join a shared batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinker_backend.loss_catalog import LOSSES, LossEntry, LossInput
from tinker_backend.runtime.loss_graph import check_graph
from tinker_backend.runtime.losses import POSITION_LOCAL, Config
from tinker_backend.runtime.roles import Array, CsrArray, LossRequest, RuntimeFault
from tinker_backend.runtime.training_run import TrainingRun


@dataclass(frozen=True)
class PreparedDatum:
    """A checked datum. ``targets`` int64 (N, K); ``inputs`` float32, (N,) or (N, K); every optional input is filled in."""

    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    inputs: dict[str, npt.NDArray[np.generic]]
    output_shape: tuple[int, ...]


@dataclass(frozen=True)
class PreparedRequest:
    """A checked request; ``index`` is its place in the call."""

    index: int
    request: LossRequest
    run: TrainingRun
    config: Config
    data: list[PreparedDatum]

    @property
    def position_local(self) -> bool:
        """The loss is a sum over positions, so slices of positions may be differentiated alone."""
        return self.request.loss_fn in POSITION_LOCAL


def prepare(index: int, request: LossRequest, run: TrainingRun) -> PreparedRequest:
    """Checks a request. Raises RuntimeFault (user) that names field, value and what is right."""
    if request.loss_fn == "custom":
        if request.graph is None:
            raise RuntimeFault("loss_fn 'custom' needs the graph of an uploaded loss", "user")
        check_graph(request.graph)
        entry, config = LossEntry({"target_tokens": LossInput("int64")}), dict(request.config)
    else:
        if request.loss_fn not in LOSSES:
            raise RuntimeFault(f"loss_fn {request.loss_fn!r} is unknown; known: {', '.join(LOSSES)}, custom", "user")
        entry = LOSSES[request.loss_fn]
        config = _config(request, entry)
    if not request.data:
        raise RuntimeFault("data: at least one datum is needed", "user")
    data = [
        _datum(f"data[{i}]", d.tokens, d.inputs, entry, config, request.loss_fn, run)
        for i, d in enumerate(request.data)
    ]
    return PreparedRequest(index, request, run, config, data)


def _config(request: LossRequest, entry: LossEntry) -> dict[str, float | str]:
    config = dict(entry.config)
    for key, value in request.config.items():
        if key not in entry.config:
            known = ", ".join(entry.config) or "none"
            raise RuntimeFault(f"loss_fn_config key {key!r} is unknown to {request.loss_fn}; known: {known}", "user")
        number = float(value) if isinstance(value, (int, float)) else float("nan")
        if not np.isfinite(number):
            raise RuntimeFault(f"loss_fn_config {key} = {value!r} is not a finite number", "user")
        config[key] = number
    if "clip_low_threshold" in config and float(config["clip_low_threshold"]) > float(config["clip_high_threshold"]):
        raise RuntimeFault(
            f"clip_low_threshold {config['clip_low_threshold']} is above clip_high_threshold {config['clip_high_threshold']}; "
            "both are absolute probability ratios such as 0.8 and 1.2",
            "user",
        )
    return config


def _datum(
    where: str,
    tokens: npt.NDArray[np.int32],
    given: Mapping[str, Array | CsrArray],
    entry: LossEntry,
    config: Mapping[str, float | str],
    loss_fn: str,
    run: TrainingRun,
) -> PreparedDatum:
    size, vocab, context = len(tokens), run.base.architecture.vocab_size, run.base.context
    if not 1 <= size <= context:
        raise RuntimeFault(f"{where}: {size} tokens; between 1 and {context} are possible", "user")
    ids = np.asarray(tokens, dtype=np.int64)
    _check_ids(f"{where}.model_input", ids, vocab)
    if "target_tokens" not in given:
        raise RuntimeFault(f"{where}: loss_fn_inputs needs target_tokens", "user")
    targets = np.asarray(dense(given["target_tokens"]), dtype=np.int64)
    ranks = (1, 2) if entry.inputs["target_tokens"].max_rank == 2 or loss_fn == "custom" else (1,)
    if targets.ndim not in ranks or targets.shape[0] != size or targets.size == 0:
        raise RuntimeFault(f"{where}: target_tokens has shape {targets.shape}, but the input has {size} tokens", "user")
    _check_ids(f"{where}.target_tokens", targets, vocab)
    inputs: dict[str, npt.NDArray[np.generic]] = {}
    if loss_fn == "custom":
        inputs = {n: np.asarray(dense(v)) for n, v in given.items() if n not in ("target_tokens", "logprobs")}
        inputs["target_tokens"] = targets
        return PreparedDatum(ids, targets.reshape(size, -1), inputs, targets.shape)
    for name, kind in entry.inputs.items():
        if name == "target_tokens":
            continue
        if name in given:
            value = np.asarray(dense(given[name]), dtype=np.float32)
            if value.shape != targets.shape:
                raise RuntimeFault(
                    f"{where}: {name} has shape {value.shape}, target_tokens has {targets.shape}", "user"
                )
            if not np.isfinite(value).all():
                raise RuntimeFault(f"{where}: {name} holds NaN or infinite values", "user")
        elif kind.required:
            raise RuntimeFault(f"{where}: {loss_fn} needs {name} in loss_fn_inputs", "user")
        else:
            value = np.full(targets.shape, 1.0 if name == "weights" else float(config[name]), dtype=np.float32)
        inputs[name] = value
    unknown = sorted(set(given) - set(entry.inputs))
    if unknown:
        raise RuntimeFault(
            f"{where}: {loss_fn} takes no input {unknown[0]!r}; it takes {', '.join(entry.inputs)}", "user"
        )
    return PreparedDatum(ids, targets.reshape(size, -1), inputs, targets.shape)


def _check_ids(where: str, ids: npt.NDArray[np.int64], vocab: int) -> None:
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab):
        bad = ids[(ids < 0) | (ids >= vocab)].flat[0]
        raise RuntimeFault(f"{where}: token id {int(bad)} is outside the vocabulary of {vocab}", "user")


def dense(value: Array | CsrArray) -> Array:
    """The array itself, or a CSR array with zeros in the cells that are not listed. Raises RuntimeFault (user)."""
    if not isinstance(value, CsrArray):
        return value
    rows, columns = value.shape
    crow, col = np.asarray(value.crow_indices), np.asarray(value.col_indices)
    sound = (
        crow.shape == (rows + 1,)
        and crow[0] == 0
        and crow[-1] == len(col) == len(value.values)
        and (np.diff(crow) >= 0).all()
        and (len(col) == 0 or (col.min() >= 0 and col.max() < columns))
    )
    if not sound or rows * columns > 64 * 1024 * 1024:
        raise RuntimeFault(f"sparse input of shape {value.shape} is malformed or too large", "user")
    out = np.zeros((rows, columns), dtype=value.values.dtype)
    out[np.repeat(np.arange(rows), np.diff(crow)), col] = value.values
    return out


@dataclass(frozen=True)
class RequestRows:
    """The part of a request that is in one micro-batch: rows ``start:stop`` of the pack, datums ``first:last``."""

    prepared: PreparedRequest
    start: int
    stop: int
    first: int
    last: int
    inputs: dict[str, Tensor]
    """Inputs of all these datums one after another, (rows, k); empty for losses that are no sums over positions."""

    @property
    def data(self) -> list[PreparedDatum]:
        """The datums themselves."""
        return self.prepared.data[self.first : self.last]


@dataclass(frozen=True)
class MicroBatch:
    """What one forward takes: tokens (T,), targets (T, K), and the requests' rows in order."""

    tokens: Tensor
    targets: Tensor
    lengths: list[int]
    parts: list[RequestRows]


def micro_batches(requests: list[PreparedRequest], budget: int, device: torch.device) -> list[MicroBatch]:
    """Fills micro-batches in order, at most ``budget`` tokens each (or one longer datum alone)."""
    batches: list[list[tuple[PreparedRequest, int]]] = [[]]
    used = 0
    for prepared in requests:
        for position, datum in enumerate(prepared.data):
            size = len(datum.tokens)
            if batches[-1] and used + size > budget:
                batches.append([])
                used = 0
            batches[-1].append((prepared, position))
            used += size
    return [_micro_batch(items, device) for items in batches]


def _micro_batch(items: list[tuple[PreparedRequest, int]], device: torch.device) -> MicroBatch:
    data = [prepared.data[position] for prepared, position in items]
    lengths = [len(d.tokens) for d in data]
    width = max(d.targets.shape[1] for d in data)
    targets = np.zeros((sum(lengths), width), dtype=np.int64)
    parts: list[RequestRows] = []
    row, i = 0, 0
    while i < len(items):
        prepared, first = items[i]
        start, last = row, first
        while i < len(items) and items[i][0] is prepared:
            targets[row : row + lengths[i], : data[i].targets.shape[1]] = data[i].targets
            row += lengths[i]
            last = items[i][1] + 1
            i += 1
        inputs = _concatenated(prepared.data[first:last], width, device) if prepared.position_local else {}
        parts.append(RequestRows(prepared, start, row, first, last, inputs))
    return MicroBatch(
        torch.from_numpy(np.concatenate([d.tokens for d in data])).to(device),
        torch.from_numpy(targets).to(device),
        lengths,
        parts,
    )


def _concatenated(data: list[PreparedDatum], width: int, device: torch.device) -> dict[str, Tensor]:
    """Inputs of consecutive datums as (rows, width); alternatives beyond a datum's own K weigh nothing."""
    joined: dict[str, Tensor] = {}
    for name in data[0].inputs:
        out = np.zeros((sum(len(d.tokens) for d in data), width), dtype=np.float32)
        row = 0
        for d in data:
            value = d.inputs[name].reshape(len(d.tokens), -1)
            out[row : row + len(d.tokens), : value.shape[1]] = value
            row += len(d.tokens)
        joined[name] = torch.from_numpy(out).to(device)
    return joined


def by_blame(
    group: Sequence[PreparedRequest], broken: Collection[str]
) -> tuple[list[PreparedRequest], list[PreparedRequest]]:
    """The requests behind the gradients of ``broken`` runs: those that were the only one of their run, and the others.

    Which of the others it was shows when each has a pass of its own.
    """
    behind = [p for p in group if p.request.run_id in broken and not p.request.forward_only]
    count = Counter(p.request.run_id for p in behind)
    guilty = [p for p in behind if count[p.request.run_id] == 1]
    return guilty, [p for p in behind if count[p.request.run_id] > 1]
