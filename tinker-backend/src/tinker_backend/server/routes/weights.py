"""save_weights in its forms, load_weights, weights_info, copy_weights."""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter

from ...checkpoints.paths import TinkerPath
from ...dispatch.admission import check_name, check_ttl
from ...dispatch.promises import Promise
from ...dispatch.run import Run
from ...dispatch.run_records import run_insertion
from ...dispatch.samplers import SamplerRecord
from ...errors import ApiError, BadRequest
from ...runtime.roles import LoraSpec, RunSpec
from ...wire.requests import (
    CopyWeightsBody,
    CreateSessionBody,
    LoadWeightsBody,
    SaveExternalBody,
    SaveForSamplerBody,
    SaveWeightsBody,
    TinkerPathBody,
)
from ..access import Caller, Server
from ..backend import Backend
from .models import create_from_weights, promised, require_training

router = APIRouter(prefix="/api/v1")


@router.post("/save_weights")
async def save_weights(body: SaveWeightsBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """A training checkpoint: weights, gradients and optimizer."""
    run = await backend.training.get(body.model_id, caller)
    try:
        params = {
            "name": check_name(body.path or f"seq-{body.seq_id}"),
            "ttl_seconds": check_ttl(body.ttl_seconds),
            "overwrite": body.overwrite,
            "user_metadata": body.user_metadata,
        }
    except ApiError:
        backend.training.refuse(run, body.seq_id)
        raise
    return promised(await backend.training.submit(run, body.seq_id, "save_weights", params))


@router.post("/save_weights_for_sampler")
async def save_weights_for_sampler(body: SaveForSamplerBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Sampler weights: with a name (kept), or unnamed (a sampler at once, nothing listed)."""
    run = await backend.training.get(body.model_id, caller)
    try:
        ttl = check_ttl(body.ttl_seconds)
        if body.path is None and body.sampling_session_seq_id is None:
            raise BadRequest("save_weights_for_sampler needs path (a name) or sampling_session_seq_id")
        name = None if body.path is None else check_name(body.path)
    except ApiError:
        backend.training.refuse(run, body.seq_id)
        raise
    if name is not None:
        params = {"name": name, "ttl_seconds": ttl, "user_metadata": body.user_metadata}
        return promised(await backend.training.submit(run, body.seq_id, "save_sampler", params))
    return promised(await _publish(body, run, backend))


async def _publish(body: SaveForSamplerBody, run: Run, backend: Backend) -> Promise:
    seq_id = run.highest_seen + 1 if body.seq_id is None else body.seq_id
    sampler_id = f"{run.session_id}:sample:{body.sampling_session_seq_id}"
    known = await backend.samplers.find(sampler_id)
    if known is not None and (known.run_id, known.seq_id) != (run.run_id, seq_id):
        backend.training.refuse(run, body.seq_id)
        raise BadRequest(
            f"sampling_session_seq_id {body.sampling_session_seq_id} of this session is taken; count on from the last one"
        )
    record = known or SamplerRecord(
        sampler_id,
        run.session_id,
        run.owner,
        run.spec.base_model,
        run.requested_model,
        None,
        body.kind,
        sampler_id,
        run.run_id,
        seq_id,
    )
    params = {"sampler_id": sampler_id}
    insertion = backend.samplers.insertion(record, None)
    return await backend.training.submit(run, seq_id, "publish", params, record=insertion)


@router.post("/save_weights_external")
async def save_weights_external(body: SaveExternalBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Weights for other programs: a PEFT adapter folder, or a Hugging Face model folder when all weights are trained."""
    run = await backend.training.get(body.model_id, caller)
    try:
        if body.age_encryption_recipients:
            raise BadRequest("age_encryption_recipients is not served: this server keeps weights on its own disk only")
        params = {"name": check_name(body.path), "ttl_seconds": check_ttl(body.ttl_seconds)}
    except ApiError:
        backend.training.refuse(run, body.seq_id)
        raise
    return promised(await backend.training.submit(run, body.seq_id, "save_external", params))


@router.post("/load_weights")
async def load_weights(body: LoadWeightsBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Loads a training checkpoint into a run, or as a new run (then without model_id)."""
    if body.model_id is None:
        return promised(await create_from_weights(body, caller, backend))
    require_training(backend)
    run = await backend.training.get(body.model_id, caller)
    try:
        path = TinkerPath.parse(body.path)
        if path.kind != "training":
            raise BadRequest(f"{path} holds {path.kind} weights; load_weights needs a training checkpoint (/weights/)")
        if path.run_id != run.run_id:  # one of its own may still be in the queue
            await backend.store.readable(path, caller)
    except ApiError:
        backend.training.refuse(run, body.seq_id)
        raise
    params = {"path": str(path), "optimizer": body.optimizer}
    return promised(await backend.training.submit(run, body.seq_id, "load_weights", params))


@router.post("/weights_info")
async def weights_info(body: TinkerPathBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Base model and adapter of a checkpoint."""
    checkpoint = await backend.store.readable(TinkerPath.parse(body.tinker_path), caller)
    lora = checkpoint.spec["lora"]
    is_lora = lora["rank"] > 0
    return {
        "base_model": checkpoint.requested_model,
        "is_lora": is_lora,
        "lora_rank": lora["rank"] if is_lora else None,
        "optimizer_config": {"type": checkpoint.spec["optimizer"]},
        "train_unembed": lora["train_unembed"],
        "train_mlp": lora["train_mlp"],
        "train_attn": lora["train_attn"],
    }


@router.post("/copy_weights")
async def copy_weights(body: CopyWeightsBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """A copy of a readable checkpoint under a new session and run of the caller."""
    source = await backend.store.readable(TinkerPath.parse(body.source_path), caller)
    ttl = check_ttl(body.ttl_seconds)
    opening = CreateSessionBody(project_id=body.destination_project_id, tags=["copy_weights"])
    session = await backend.sessions.create(opening, caller, secrets.token_hex(8))
    run_id = f"{session.session_id}:train:0"
    copy = await backend.store.copy(source, run_id, caller.owner, ttl)
    now = time.time()
    spec = RunSpec(run_id, source.spec["base_model"], LoraSpec(**source.spec["lora"]), source.spec["optimizer"])
    metadata = {"copied_from": str(source.path)}
    holder = Run(run_id, session.session_id, caller.owner, source.requested_model, spec, metadata, now, now)
    holder.failed = "it only holds copied weights; make a training client from them instead"
    await backend.ledger.run(run_insertion(holder))
    return {"tinker_path": str(copy.path)}
