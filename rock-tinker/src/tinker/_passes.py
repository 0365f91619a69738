"""One forward or forward_backward call: cut, sent in the right order, put together again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._chunks import combine, plan_chunks
from ._decode import decode_forward_backward
from ._encode import check_config, check_data, datum_bytes, encode_forward_backward
from ._http import Call
from ._pools import PoolKind
from ._promise import Expected, Promise, submit
from ._queue_state import QueueStateObserver
from .types.client_config import ClientConfigResponse
from .types.datum import Datum
from .types.forward_backward import ForwardBackwardOutput

if TYPE_CHECKING:
    from ._holder import Holder
    from ._turns import Turn

_THREAD_BYTES = 256 * 1024  # encoding more than this would hold up the loop
FbPromise = Promise[ForwardBackwardOutput]


@dataclass(frozen=True)
class Pass:
    """What one call sends: the same loss over one or more chunks of datums."""

    chunks: list[list[Datum]]
    loss_fn: str
    loss_fn_config: Mapping[str, float | str] | None
    forward_only: bool

    @classmethod
    def plan(
        cls,
        flags: ClientConfigResponse,
        data: Sequence[Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float | str] | None,
        *,
        forward_only: bool,
    ) -> Pass:
        """Raises ValueError and TypeError for data that cannot be sent; nothing has been, and no id is used."""
        data = check_data(data)
        check_config(loss_fn_config)
        chunks = plan_chunks(data, max_bytes=flags.fwdbwd_max_chunk_bytes_count, max_datums=flags.fwdbwd_max_chunk_len)
        return cls(chunks, loss_fn, loss_fn_config, forward_only)


async def run_pass(
    holder: Holder, model_id: str, plan: Pass, turn: Turn, observer: QueueStateObserver
) -> ForwardBackwardOutput:
    """Send a pass in its turn and wait for its result."""
    async with turn:
        promises = await turn.complete(send_pass(holder, model_id, plan, turn, list(turn.seq_ids), observer))
    return await collect(promises)


async def collect(promises: Sequence[FbPromise]) -> ForwardBackwardOutput:
    return combine(await asyncio.gather(*(promise.result() for promise in promises)))


async def send_pass(
    holder: Holder, model_id: str, plan: Pass, turn: Turn, seq_ids: Sequence[int], observer: QueueStateObserver
) -> list[FbPromise]:
    """POST all chunks; the promises in chunk order.

    In parallel mode the chunk with the lowest id goes last, when all others have been accepted: a server that runs
    requests in order of their ids then has the whole batch before it begins.
    """

    async def send(index: int) -> FbPromise:
        return await _send_chunk(holder, model_id, plan, turn, index, seq_ids[index], observer)

    if not holder.flags.parallel_fwdbwd_chunks:
        return [await send(index) for index in range(len(plan.chunks))]
    others = await asyncio.gather(*(send(index) for index in range(1, len(plan.chunks))))
    return [await send(0), *others]


async def _send_chunk(
    holder: Holder, model_id: str, plan: Pass, turn: Turn, index: int, seq_id: int, observer: QueueStateObserver
) -> FbPromise:
    chunk = plan.chunks[index]
    size = sum(datum_bytes(datum) for datum in chunk)
    request_type = "Forward" if plan.forward_only else "ForwardBackward"
    expected = Expected(request_type, decode=decode_forward_backward)

    def encode() -> tuple[bytes, dict[str, str]]:
        body = encode_forward_backward(
            chunk,
            plan.loss_fn,
            plan.loss_fn_config,
            model_id=model_id,
            seq_id=seq_id,
            forward_only=plan.forward_only,
        )
        headers = {"Content-Type": "application/x-protobuf"}
        if holder.flags.proto_compress_fwdbwd:
            import zstandard

            body = zstandard.ZstdCompressor().compress(body)
            headers["Content-Encoding"] = "zstd"
        return body, headers

    async with holder.training_bytes.hold(size):
        body, headers = await asyncio.to_thread(encode) if size > _THREAD_BYTES else encode()
        call = Call("POST", "forward_backward", content=body, headers=headers)
        turn.sent = True
        return await submit(holder, PoolKind.TRAIN, call, expected, observer=observer)
