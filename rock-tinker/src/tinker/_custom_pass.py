"""forward_backward with a loss that runs in this process.

The server computes log probabilities (forward), the loss and its derivative by them are computed here, and the server
gets the derivative as weights of a cross entropy: its gradient by the model's weights is the one wanted, because cross
entropy is ``sum(-logprob * weight)`` and so ``weight = -dloss/dlogprob``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future as ConcurrentFuture
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ._encode import check_data
from ._loop import LOOP
from ._loss_handle import LossHandle
from ._passes import Pass, collect, send_pass
from ._queue_state import QueueStateObserver
from ._turns import Turns
from .types.datum import Datum
from .types.forward_backward import ForwardBackwardOutput
from .types.tensor_data import TensorData, import_torch

if TYPE_CHECKING:
    from ._holder import Holder

_EXECUTOR = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tinker-custom-loss")
_SERVER_LOSS = "cross_entropy"


def run_custom_pass(
    holder: Holder,
    model_id: str,
    turns: Turns,
    observer: QueueStateObserver,
    data: Sequence[Datum],
    loss_fn: Any,
) -> ConcurrentFuture[ForwardBackwardOutput]:
    """Start the pass; raises ValueError for data that it cannot use and ImportError without torch."""
    import_torch()
    data = check_data(data)
    function = _over_batch(loss_fn) if isinstance(loss_fn, LossHandle) else loss_fn
    plan = Pass.plan(holder.flags, [_server_datum(datum) for datum in data], _SERVER_LOSS, None, forward_only=True)
    count = len(plan.chunks)
    turn = turns.reserve(2 * count)

    async def run() -> ForwardBackwardOutput:
        async with turn:
            ids = list(turn.seq_ids)
            try:
                promises = await send_pass(holder, model_id, plan, turn, ids[:count], observer)
                forward = await collect(promises)
                loop = asyncio.get_running_loop()
                loss, metrics, weights = await loop.run_in_executor(
                    _EXECUTOR, _differentiate, function, data, _logprobs_of(forward, len(data))
                )
                backward = dataclasses.replace(plan, chunks=_with_weights(plan.chunks, weights), forward_only=False)
                promises = await send_pass(holder, model_id, backward, turn, ids[count:], observer)
            except BaseException as error:
                turns.poison(error)  # the server waits for the ids that were reserved and not used
                raise
        result = await collect(promises)
        return _with_metrics(result, loss, metrics)

    future = LOOP.start(holder.observed(run()))
    future.add_done_callback(turn.finish_soon)
    return future


def _server_datum(datum: Datum) -> Datum:
    targets = datum.loss_fn_inputs.get("target_tokens")
    if targets is None:
        raise ValueError(
            f"forward_backward_custom needs target_tokens in every Datum, got {sorted(datum.loss_fn_inputs)}"
        )
    weights = datum.loss_fn_inputs.get("weights")
    if weights is None:
        shape = targets.shape or [len(targets)]
        weights = TensorData.from_numpy(np.zeros(shape, dtype=np.float32))
    return dataclasses.replace(datum, loss_fn_inputs={"target_tokens": targets, "weights": weights})


def _logprobs_of(forward: ForwardBackwardOutput, count: int) -> list[TensorData]:
    outputs = forward.loss_fn_outputs
    if len(outputs) != count or any("logprobs" not in output for output in outputs):
        raise ValueError(f"the server sent logprobs for {len(outputs)} of {count} datums")
    return [output["logprobs"] for output in outputs]


def _differentiate(
    function: Any, data: list[Datum], logprobs: list[TensorData]
) -> tuple[float, dict[str, float], list[np.ndarray]]:
    """(loss, metrics, weights a datum)"""
    torch = import_torch()
    leaves = [tensor.to_torch().requires_grad_(True) for tensor in logprobs]
    loss, metrics = function(data, leaves)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(f"the custom loss must return a scalar tensor and a dict, got {type(loss).__name__} {loss}")
    if loss.requires_grad:
        loss.backward()
    weights = [
        np.zeros(tuple(leaf.shape), dtype=np.float32) if leaf.grad is None else -leaf.grad.float().numpy()
        for leaf in leaves
    ]
    return float(loss.detach()), {key: _number(value) for key, value in metrics.items()}, weights


def _number(value: Any) -> float:
    return float(value.detach() if hasattr(value, "detach") else value)


def _with_weights(chunks: list[list[Datum]], weights: list[np.ndarray]) -> list[list[Datum]]:
    remaining = iter(weights)
    return [[_replace_weights(datum, next(remaining)) for datum in chunk] for chunk in chunks]


def _replace_weights(datum: Datum, weights: np.ndarray) -> Datum:
    inputs = {**datum.loss_fn_inputs, "weights": TensorData.from_numpy(weights)}
    return dataclasses.replace(datum, loss_fn_inputs=inputs)


def _with_metrics(result: ForwardBackwardOutput, loss: float, metrics: Mapping[str, float]) -> ForwardBackwardOutput:
    merged = dict(result.metrics)
    if "loss:sum" in merged:
        merged["surrogate_loss:sum"] = merged.pop("loss:sum")
    merged.update(metrics)
    merged["loss:sum"] = loss
    return dataclasses.replace(result, metrics=merged)


def _over_batch(handle: LossHandle) -> Any:
    """The loss of a batch by a handle: the sum over datums; metrics by their suffix."""

    def batch_loss(data: list[Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        total: Any = 0.0
        collected: dict[str, list[float]] = {}
        for datum, leaf in zip(data, logprobs, strict=True):
            loss, metrics = handle.graph(*_arguments(handle, datum, leaf))
            total = total + loss
            for key, value in metrics.items():
                collected.setdefault(key, []).append(_number(value))
        return total, {
            key: sum(values) / len(values) if key.endswith(":mean") else sum(values)
            for key, values in collected.items()
        }

    return batch_loss


def _arguments(handle: LossHandle, datum: Datum, logprobs: Any) -> list[Any]:
    arguments = [logprobs]
    for declared in handle.inputs[1:]:
        tensor = datum.loss_fn_inputs.get(declared.name)
        if tensor is None:
            raise ValueError(f"custom loss {handle.name!r} needs {declared.name!r} in every Datum")
        value = tensor.to_torch()
        if value.ndim != declared.rank:
            raise ValueError(
                f"input {declared.name!r} of custom loss {handle.name!r} has rank {declared.rank}, "
                f"got a tensor of shape {list(value.shape)}"
            )
        arguments.append(value)
    return arguments
