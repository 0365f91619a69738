"""Flags, health, capabilities, tokens, telemetry."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from ...errors import Forbidden
from ...wire.requests import SdkVersionBody
from ..access import Caller, Server

router = APIRouter(prefix="/api/v1")


@router.post("/client/config")
async def client_config(body: SdkVersionBody, backend: Server) -> dict[str, Any]:
    """Static flags of the SDK. Chunks are sent in parallel: the order is made here."""
    return {
        "pjwt_auth_enabled": backend.config.backend.api_keys_file is not None,
        "parallel_fwdbwd_chunks": True,
        "proto_compress_fwdbwd": False,
        "sample_join_sampling_session": True,
        "custom_loss_server_side": True,
    }


@router.post("/client/dynamic_config")
async def dynamic_config(body: SdkVersionBody) -> dict[str, Any]:
    """Flags that may change while a client runs."""
    return {"refresh_interval_sec": 300, "sample_cancel_enabled": True, "sample_cancel_max_batch_size": 64}


@router.post("/auth/token")
async def auth_token(caller: Caller, backend: Server) -> dict[str, str]:
    """Exchanges an API key for a short-lived JWT."""
    if backend.config.backend.api_keys_file is None:
        raise Forbidden("this server has no API keys, so it issues no tokens")
    return {"jwt": backend.authenticator.issue_token(caller)}


@router.get("/auth/apikey/me")
async def own_key(caller: Caller) -> dict[str, Any]:
    """The caller's key, without its secret."""
    return {
        "key_id": caller.key_id,
        "name": caller.name,
        "note": caller.note,
        "details": {"org_details": {"name": caller.organization}, "user_details": {"email": caller.email}},
    }


@router.delete("/auth/apikey/me")
async def revoke_own_key(caller: Caller, backend: Server) -> dict[str, Any]:
    """Logs out: the key stops working."""
    backend.authenticator.revoke(caller)
    return {}


@router.get("/healthz")
async def healthz(backend: Server) -> JSONResponse:
    """200 once requests can be served; 503 while the runtime starts."""
    state = backend.supervisor.state
    if state == "ready":
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": state}, 503)


@router.get("/get_server_capabilities")
async def capabilities(backend: Server) -> dict[str, Any]:
    """The base models, also under their aliases."""
    cards = await backend.cards()
    rollout_only = backend.config.runtime.rollout_only
    return {
        "supported_models": [
            {
                "model_name": name,
                "max_context_length": card.max_context_length,
                "trainable": card.trainable and not rollout_only,
                "sampleable": card.sampleable,
            }
            for name, card in cards.items()
        ]
    }


@router.post("/telemetry")
async def telemetry(request: Request) -> dict[str, str]:
    """Accepted at once and not kept: clients wait for the answer before they raise an error."""
    await request.body()
    return {"status": "accepted"}
