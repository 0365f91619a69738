"""retrieve_future and retrieve_futures: long polls that wake by event."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from ...dispatch.promises import Promise
from ...runtime.roles import LossResult, SampleResult
from ...wire import sampling as sampling_wire
from ...wire import training as training_wire
from ...wire.requests import FutureBody, RetrieveFuturesBody
from ..access import Caller, Server

router = APIRouter(prefix="/api/v1")

_METADATA_FIRST = 8 * 1024 * 1024
"""Results from this size on are announced first, to clients that allow it."""


@router.post("/retrieve_future")
async def retrieve_future(body: FutureBody, caller: Caller, backend: Server, request: Request) -> Response:
    """The result, or 408 try_again when it is not there within the long poll."""
    promise = await backend.promises.get(body.request_id, caller)
    if not await promise.wait(backend.poll_seconds):
        return _json(_try_again(promise, backend.supervisor.state), 408)
    if body.allow_metadata_only and promise.size >= _METADATA_FIRST and promise.failure is None:
        return _json({"status": "complete_metadata", "response_payload_size": promise.size})
    backend.promises.delivered(promise)
    return encoded(promise, request.headers.get("accept", ""))


def _try_again(promise: Promise, state: str) -> dict[str, Any]:
    paused = state != "ready"
    return {
        "type": "try_again",
        "request_id": promise.request_id,
        "queue_state": "paused_capacity" if paused else "active",
        "queue_state_reason": "the runtime is being restarted" if paused else None,
    }


def encoded(promise: Promise, accept: str) -> Response:
    """A finished promise in the form that the client asks for."""
    failure = promise.failure
    if failure is not None:
        return _json({"error": failure.message, "category": failure.category})
    result = promise.result
    if not isinstance(result, LossResult | SampleResult):
        return _json(result)
    if training_wire.PROTOBUF in accept:
        codec = training_wire.result_to_proto if isinstance(result, LossResult) else sampling_wire.result_to_proto
        return Response(codec(result), media_type=training_wire.PROTOBUF)  # type: ignore[arg-type]
    if isinstance(result, LossResult):
        return _json(training_wire.result_to_json(result))
    return _json(sampling_wire.result_to_json(result))


def _json(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


@router.post("/retrieve_futures")
async def retrieve_futures(body: RetrieveFuturesBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Which samples of one sampling client have ended since the cursor."""
    record = await backend.samplers.get(body.target.sampling_session_id, caller)
    completions = await backend.sampling.completions.of(record.sampler_id, body.target.cloned_sampler_id)
    limit = backend.poll_seconds
    wait = limit if body.timeout is None else min(body.timeout, limit)
    found = completions.after(body.prev_cursor)
    if not found and wait > 0:
        completions.arrived.clear()
        try:
            async with asyncio.timeout(wait):
                await completions.arrived.wait()
        except TimeoutError:
            pass
        found = completions.after(body.prev_cursor)
    return {"completions": found, "cursor": max(completions.cursor, body.prev_cursor)}
