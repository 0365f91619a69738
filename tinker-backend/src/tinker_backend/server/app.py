"""Builds the FastAPI application around a Backend."""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from ..errors import ApiError, LedgerError
from .backend import Backend
from .body_errors import describe
from .limits import FrontDoor
from .routes import (
    anthropic,
    checkpoints,
    console,
    futures,
    metrics,
    models,
    openai,
    sampling,
    service,
    sessions,
    training,
    training_runs,
    usage,
    weights,
)
from .text_check import refuse_broken_text

log = logging.getLogger(__name__)

_LONGEST_DETAIL = 16 * 1024
"""Characters of a refusal; what it quotes of the request may be longer."""

# Routes are matched in order: the busiest come first.
_ROUTERS = (
    futures,
    sampling,
    training,
    service,
    sessions,
    models,
    weights,
    training_runs,
    checkpoints,
    usage,
    console,
    metrics,
    openai,
    anthropic,
)


def create_app(backend: Backend) -> FastAPI:
    """The application; ``backend`` must be started by the caller (see ``cli.serve``)."""
    app = FastAPI(
        title="tinker-backend",
        version=backend.version,
        docs_url="/docs",
        redoc_url=None,
        dependencies=[Depends(refuse_broken_text)],
    )
    app.state.backend = backend
    for module in _ROUTERS:
        app.include_router(module.router)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(LedgerError, _ledger_error)
    app.add_exception_handler(sa.exc.DataError, _unstorable)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(FrontDoor, backend=backend)
    return app


async def _api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return JSONResponse({"detail": str(error)[:_LONGEST_DETAIL]}, error.status, headers=dict(error.headers))


async def _ledger_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 503, headers={"retry-after": "5"})


async def _unstorable(request: Request, error: Exception) -> JSONResponse:
    """A value that this database does not hold, such as a text that is too long for its column or has a NUL."""
    assert isinstance(error, sa.exc.DataError)
    log.warning("a request with a value that the ledger does not hold: %s", error.orig)
    return JSONResponse({"detail": f"a value of the request cannot be stored: {error.orig}"}, 400)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """A body of the wrong form: 422 in plain words; the seq_id that it carries is used up."""
    assert isinstance(error, RequestValidationError)
    body: Any = error.body
    if isinstance(body, dict) and isinstance(body.get("model_id"), str) and isinstance(body.get("seq_id"), int):
        backend: Backend = request.app.state.backend
        try:
            run = await backend.training.get(body["model_id"], request.state.principal)
            backend.training.refuse(run, body["seq_id"])
        except ApiError as refusal:
            log.debug("no run for a refused body: %s", refusal)
    return JSONResponse({"detail": describe(error)[:_LONGEST_DETAIL]}, 422)
