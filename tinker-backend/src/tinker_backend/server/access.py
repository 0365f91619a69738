"""Dependencies of the routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from .backend import Backend
from .principal import Principal, current


async def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


Server = Annotated[Backend, Depends(_backend)]
"""The backend."""
Caller = Annotated[Principal, Depends(current)]
"""Who is asking."""
