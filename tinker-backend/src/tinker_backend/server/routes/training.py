"""forward_backward, forward and optim_step."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import sqlalchemy as sa
from fastapi import APIRouter, Request

from ...dispatch.admission import check_loss_request
from ...errors import ApiError, BadRequest
from ...ledger import tables
from ...runtime.roles import LossRequest, OptimParams
from ...wire import training as wire
from ...wire.requests import OptimStepBody
from ..access import Caller, Server
from ..backend import Backend
from ..principal import Principal
from .models import promised, require_training

router = APIRouter(prefix="/api/v1")


@router.post("/forward_backward")
async def forward_backward(request: Request, caller: Caller, backend: Server) -> dict[str, Any]:
    """One chunk of a forward_backward: protobuf (also zstd) or JSON. Answers with a promise at once, in any order."""
    return await _accept(request, caller, backend, forward_only=False)


@router.post("/forward")
async def forward(request: Request, caller: Caller, backend: Server) -> dict[str, Any]:
    """The same without gradients, for clients that have a call of its own for it."""
    return await _accept(request, caller, backend, forward_only=True)


async def _accept(request: Request, caller: Principal, backend: Backend, forward_only: bool) -> dict[str, Any]:
    require_training(backend)
    body = wire.decompressed(
        await request.body(), request.headers.get("content-encoding"), backend.config.limits.body_bytes
    )
    is_proto = wire.PROTOBUF in request.headers.get("content-type", "")
    envelope = wire.open_proto(body) if is_proto else wire.open_json(_json(body))
    run = await backend.training.get(envelope.model_id, caller)
    try:
        if envelope.seq_id is not None and envelope.seq_id < 1:
            raise BadRequest(f"seq_id {envelope.seq_id} must be at least 1")
        seq_id = envelope.seq_id or run.highest_seen + 1
        if is_proto:
            loss = wire.request_from_proto(envelope, seq_id)
            loss = replace(loss, forward_only=loss.forward_only or forward_only)
        else:
            loss = wire.request_from_json(envelope, seq_id, forward_only)
        loss = await _admitted(loss, caller, backend, run.spec.base_model)
    except ApiError:
        backend.training.refuse(run, envelope.seq_id)
        raise
    tokens = sum(datum.tokens.size for datum in loss.data)
    kind = "forward" if loss.forward_only else "forward_backward"
    return promised(await backend.training.submit(run, seq_id, kind, {"request": loss}, tokens))


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is no JSON: {error}") from error


async def _admitted(loss: LossRequest, caller: Principal, backend: Backend, base_model: str) -> LossRequest:
    upload = None
    if loss.loss_fn == "custom":
        upload = await _custom_loss(loss, caller, backend)
        loss = replace(loss, graph=upload["graph"])
    elif loss.loss_fn == "stable_reinforce" and (substitute := backend.config.losses.stable_reinforce) is not None:
        loss = replace(loss, loss_fn=substitute)
    check_loss_request(loss, await backend.card(base_model), backend.config.limits, upload)
    return loss


async def _custom_loss(loss: LossRequest, caller: Principal, backend: Backend) -> dict[str, Any]:
    loss_id = loss.config.get("loss_id")
    query = sa.select(tables.losses).where(tables.losses.c.loss_id == str(loss_id))
    row = await backend.ledger.run(lambda connection: connection.execute(query).one_or_none())
    if row is None or row.owner != caller.owner:
        raise BadRequest(
            f"loss_fn_config.loss_id {loss_id!r} is not known; upload the loss with create_custom_loss first"
        )
    upload: dict[str, Any] = json.loads(row.upload)
    return upload


@router.post("/optim_step")
async def optim_step(body: OptimStepBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """One optimizer step with the gradients accumulated so far."""
    require_training(backend)
    run = await backend.training.get(body.model_id, caller)
    try:
        if body.optimizer_params is not None:
            family = body.optimizer_params.get("type")
            raise BadRequest(f"optimizer_params of type {family!r} are not served; send adam_params")
        adam = body.adam_params
        params = OptimParams() if adam is None else OptimParams(**adam.model_dump(exclude={"type"}))
    except ApiError:
        backend.training.refuse(run, body.seq_id)
        raise
    return promised(await backend.training.submit(run, body.seq_id, "optim_step", {"params": params}))
