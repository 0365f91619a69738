"""Samplers, asample, join, cancel."""

from __future__ import annotations

import hashlib
from typing import Any

from fastapi import APIRouter

from ...checkpoints.paths import TinkerPath
from ...dispatch.admission import check_sample_request
from ...dispatch.promises import Promise
from ...dispatch.samplers import SamplerRecord
from ...errors import BadRequest
from ...wire.requests import CreateSamplingSessionBody, FutureBody, SamplingSessionBody
from ...wire.sampling import AsampleBody, request_from_body
from ..access import Caller, Server
from ..backend import Backend
from ..principal import Principal

router = APIRouter(prefix="/api/v1")


@router.post("/create_sampling_session")
async def create_sampling_session(body: CreateSamplingSessionBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """A sampler of a base model or of saved weights. Idempotent on (session_id, sampling_session_seq_id)."""
    session = await backend.sessions.working(body.session_id, caller)
    sampler_id = f"{session.session_id}:sample:{body.sampling_session_seq_id}"
    known = await backend.samplers.find(sampler_id)
    if known is None:
        await open_sampler(backend, caller, sampler_id, session.session_id, body.base_model, body.model_path)
    elif known.kind not in ("base", "saved") or known.model_path != body.model_path:
        raise BadRequest(
            f"sampling_session_seq_id {body.sampling_session_seq_id} of this session is taken; count on from the last one"
        )
    return {"sampling_session_id": sampler_id, "type": "create_sampling_session"}


async def open_sampler(
    backend: Backend,
    caller: Principal,
    sampler_id: str | None,
    session_id: str,
    base_model: str | None,
    model_path: str | None,
) -> SamplerRecord:
    """Makes a sampler of ``model_path`` (sampler weights), or else of the base model itself. Raises ApiError.

    Without a ``sampler_id`` it is the one sampler that the caller has of these weights outside all sessions.
    """
    if model_path is not None:
        path = TinkerPath.parse(model_path)
        if path.kind == "external":
            raise BadRequest(f"{path} holds external weights; a sampler needs sampler weights (/sampler_weights/)")
        checkpoint = await backend.store.readable(path, caller)
        card = await backend.card(checkpoint.spec["base_model"], "base_model of the checkpoint")
        if base_model is not None and (await backend.card(base_model)).name != card.name:
            raise BadRequest(f"base_model {base_model!r} differs from that of {path}, {card.name!r}; leave it out")
        version = f"saved:{path}@{checkpoint.created_at:.3f}"
        requested, folder, kind = base_model or checkpoint.requested_model, checkpoint.folder, "saved"
    elif base_model is not None:
        card = await backend.card(base_model)
        if not card.sampleable:
            raise BadRequest(f"base_model {base_model!r} cannot be sampled here")
        version, requested, folder, kind = f"base:{card.name}", base_model, None, "base"
    else:
        raise BadRequest("give base_model or model_path")
    if sampler_id is None:
        digest = hashlib.sha256(f"{caller.owner} {version} {requested}".encode()).hexdigest()
        sampler_id = f"direct-{digest[:24]}"
        if (known := await backend.samplers.find(sampler_id)) is not None:
            return known
    record = SamplerRecord(sampler_id, session_id, caller.owner, card.name, requested, model_path, kind, version)
    try:
        await backend.ledger.run(backend.samplers.insertion(record, folder))
    except BaseException:
        backend.samplers.forget(record)
        raise
    return record


@router.get("/samplers/{sampler_id}")
async def get_sampler(sampler_id: str, caller: Caller, backend: Server) -> dict[str, Any]:
    """What a sampler samples from."""
    record = await backend.samplers.get(sampler_id, caller)
    return {"sampler_id": record.sampler_id, "base_model": record.requested_model, "model_path": record.model_path}


@router.post("/join_sampling_session")
async def join_sampling_session(body: SamplingSessionBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """A number for one more clone of a sampling client."""
    record = await backend.samplers.get(body.sampling_session_id, caller)
    return {"client_counter": await backend.samplers.join(record), "type": "join_sampling_session"}


@router.post("/asample")
async def asample(body: AsampleBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Samples, and scores the prompt where asked. Answers with a promise at once."""
    record = await _sampler(body, caller, backend)
    seq_id, request_id = backend.sampling.place(record, body.seq_id)
    promise = await backend.sampling.earlier(request_id, caller)
    if promise is None:
        request = request_from_body(body, request_id, record.version)
        check_sample_request(request, await backend.card(record.base_model), backend.config.limits)
        promise = await backend.sampling.submit(record, seq_id, request)
    return sample_promised(promise, body.num_samples)


def sample_promised(promise: Promise, num_samples: int) -> dict[str, Any]:
    """The promise of a sample names each sequence that will come."""
    ids = [f"{promise.request_id}:{i}" for i in range(num_samples)]
    return {"request_id": promise.request_id, "sample_sequence_ids": ids}


async def _sampler(body: AsampleBody, caller: Principal, backend: Backend) -> SamplerRecord:
    if body.sampling_session_id is not None:
        return await backend.samplers.get(body.sampling_session_id, caller)
    # Without a sampling session the request names its weights itself.
    return await open_sampler(backend, caller, None, "", body.base_model, body.model_path)


@router.post("/cancel_future")
async def cancel_future(body: FutureBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Ends an unfinished sample. Training requests are not cancelled: their order is the run's state."""
    promise = await backend.promises.get(body.request_id, caller)
    return {"cancelled": await backend.sampling.cancel(promise.request_id)}
