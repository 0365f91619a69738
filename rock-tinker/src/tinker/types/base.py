"""Bases of the wire models: requests forbid unknown fields, responses ignore them; both are frozen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Request(BaseModel):
    """A request body or a part of one. Dumped without None fields, defaults included."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)

    def __str__(self) -> str:
        return repr(self)


class Response(BaseModel):
    """A response body or a part of one. Unknown fields are ignored, so that servers may add some."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=(), defer_build=True)

    def __str__(self) -> str:
        return repr(self)
