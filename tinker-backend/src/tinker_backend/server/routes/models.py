"""Training runs come to life here: create_model, create from saved weights, get_info, unload_model, custom losses."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter

from ...checkpoints.paths import TinkerPath
from ...checkpoints.store import require_kind
from ...dispatch.promises import Promise
from ...dispatch.run import Run
from ...errors import BadRequest, Forbidden
from ...ledger import tables
from ...loss_vocabulary import graph_mistake
from ...runtime.roles import LoraSpec, ModelCard, RunSpec
from ...wire.requests import (
    CreateCustomLossBody,
    CreateModelBody,
    LoadWeightsBody,
    LoraConfigBody,
    ModelBody,
    OptimizerConfigBody,
)
from ..access import Caller, Server
from ..backend import Backend
from ..principal import Principal

router = APIRouter(prefix="/api/v1")


def promised(promise: Promise) -> dict[str, Any]:
    """The answer of every asynchronous POST of a run."""
    return {"request_id": promise.request_id, "model_id": promise.target}


def require_training(backend: Backend) -> None:
    """Raises Forbidden on a server that only samples."""
    if backend.config.runtime.rollout_only:
        raise Forbidden("this server only samples (runtime.rollout_only is true); training requests are refused")


def _check_optimizer(config: OptimizerConfigBody | None) -> str:
    family = config.type if config is not None else "adamw"
    if family not in ("adamw", "adam"):
        raise BadRequest(
            f"optimizer_config.type {family!r} is not served: its update rule is not published; use 'adamw'"
        )
    return "adamw"


def _lora(config: LoraConfigBody | None, card: ModelCard) -> LoraSpec:
    lora = config or LoraConfigBody()
    if not 0 <= lora.rank <= card.max_lora_rank:
        raise BadRequest(
            f"lora_config.rank {lora.rank} must lie between 0 (all weights are trained) and {card.max_lora_rank} "
            f"(max_lora_rank of {card.name})"
        )
    if lora.rank and not (lora.train_unembed or lora.train_mlp or lora.train_attn):
        raise BadRequest("lora_config trains nothing: set at least one of train_attn, train_mlp, train_unembed")
    if lora.seed is not None and not 0 <= lora.seed < 2**63:
        raise BadRequest(f"lora_config.seed {lora.seed} must lie between 0 and 2**63 - 1")
    # The seed is settled here, so that a run that is made again after a crash begins with the same weights.
    seed = secrets.randbelow(2**31) if lora.seed is None else lora.seed
    return LoraSpec(lora.rank, seed, lora.train_unembed, lora.train_mlp, lora.train_attn)


def _new_run(run_id: str, session_id: str, caller: Principal, requested: str, spec: RunSpec, metadata: Any) -> Run:
    now = time.time()
    return Run(run_id, session_id, caller.owner, requested, spec, metadata, now, now)


@router.post("/create_model")
async def create_model(body: CreateModelBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """A new run over a base model. Idempotent on (session_id, model_seq_id)."""
    require_training(backend)
    session = await backend.sessions.working(body.session_id, caller)
    card = await backend.card(body.base_model)
    if not card.trainable:
        raise BadRequest(f"base_model {body.base_model!r} can only be sampled here")
    optimizer = _check_optimizer(body.optimizer_config)
    run_id = f"{session.session_id}:train:{body.model_seq_id}"
    spec = RunSpec(run_id, card.name, _lora(body.lora_config, card), optimizer)
    run = _new_run(run_id, session.session_id, caller, body.base_model, spec, body.user_metadata)
    return promised(await backend.training.create(run, "create", {}))


async def create_from_weights(body: LoadWeightsBody, caller: Principal, backend: Backend) -> Promise:
    """A new run from a training checkpoint, whose adapter it takes over. Idempotent like create_model."""
    require_training(backend)
    if body.session_id is None or body.model_seq_id is None:
        raise BadRequest("load_weights needs model_id and seq_id, or session_id and model_seq_id for a new run")
    session = await backend.sessions.working(body.session_id, caller)
    _check_optimizer(body.optimizer_config)
    path = TinkerPath.parse(body.path)
    require_kind(path, "training", "a training client")
    checkpoint = await backend.store.readable(path, caller)
    card = await backend.card(checkpoint.spec["base_model"], "base_model of the checkpoint")
    if body.base_model is not None and (await backend.card(body.base_model)).name != card.name:
        raise BadRequest(f"base_model {body.base_model!r} differs from that of {path}, {card.name!r}; leave it out")
    run_id = f"{session.session_id}:train:{body.model_seq_id}"
    spec = RunSpec(run_id, card.name, LoraSpec(**checkpoint.spec["lora"]), checkpoint.spec["optimizer"])
    metadata = body.user_metadata if body.user_metadata is not None else checkpoint.user_metadata
    requested = body.base_model or checkpoint.requested_model
    run = _new_run(run_id, session.session_id, caller, requested, spec, metadata)
    return await backend.training.create(run, "load_new", {"path": str(path), "optimizer": body.optimizer})


@router.post("/get_info")
async def get_info(body: ModelBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """What a training client needs to know of its run."""
    run = await backend.training.get(body.model_id, caller)
    card = await backend.card(run.spec.base_model)
    lora = run.spec.lora
    return {
        "type": "get_info",
        "model_id": run.run_id,
        "model_data": {"arch": card.arch, "model_name": run.requested_model, "tokenizer_id": card.tokenizer_path},
        "model_name": run.requested_model,
        "optimizer_config": {"type": run.spec.optimizer},
        "is_lora": lora.rank > 0,
        "lora_rank": lora.rank or None,
    }


@router.post("/unload_model")
async def unload_model(body: ModelBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Takes a run from the runtime's memory after its queued requests; a later request brings it back."""
    run = await backend.training.get(body.model_id, caller)
    return promised(await backend.training.submit(run, None, "unload", {}))


@router.post("/create_custom_loss")
async def create_custom_loss(body: CreateCustomLossBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Takes the traced graph of a loss. Idempotent on (session_id, custom_loss_seq_id)."""
    require_training(backend)
    session = await backend.sessions.working(body.session_id, caller)
    loss_id = f"{session.session_id}:loss:{body.custom_loss_seq_id}"
    upload = body.model_dump()
    if (mistake := graph_mistake(upload["graph"])) is not None:
        raise BadRequest(f"graph of the custom loss: {mistake}")
    statement = sa.insert(tables.losses).values(
        loss_id=loss_id,
        session_id=session.session_id,
        owner=caller.owner,
        upload=json.dumps(upload),
        created_at=time.time(),
    )

    def write(connection: sa.engine.Connection) -> None:
        known = sa.select(tables.losses.c.loss_id).where(tables.losses.c.loss_id == loss_id)
        if connection.scalar(known) is None:
            connection.execute(statement)

    await backend.ledger.run(write)
    promise = await backend.ready_promise(
        f"{loss_id}:0",
        caller,
        "create_custom_loss",
        loss_id,
        session.session_id,
        {
            "loss_id": loss_id,
            "type": "create_custom_loss",
        },
    )
    return {"request_id": promise.request_id}
