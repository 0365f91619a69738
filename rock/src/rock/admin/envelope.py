"""The one shape of every answer, and the failures that become one."""

from __future__ import annotations

from typing import Any

from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse

OK = 2000
BAD_REQUEST = 4000
INTERNAL_SERVER_ERROR = 5000
COMMAND_ERROR = 6000


class Failure(Exception):
    """Becomes a Failed envelope.

    Args:
        reason: what went wrong and what to do.
        code: BAD_REQUEST, INTERNAL_SERVER_ERROR or COMMAND_ERROR.
        sandbox_id: the sandbox it is about.
        result: further fields of the result (partial output, say).
        kind: what a program may act on: "", "not_found", "gone", "start", "timeout" or "worker".
    """

    def __init__(
        self,
        reason: str,
        code: int = BAD_REQUEST,
        sandbox_id: str | None = None,
        result: dict[str, Any] | None = None,
        kind: str = "",
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.sandbox_id = sandbox_id
        self.result = {**(result or {}), "kind": kind}


def success(result: Any = None, message: str = "") -> JSONResponse:
    """A Success envelope."""
    body = {"status": "Success", "message": message, "error": None, "result": result}
    return JSONResponse(jsonable_encoder(body))


def failed(reason: str, code: int, sandbox_id: str | None = None, status: int = 200, **fields: Any) -> JSONResponse:
    """A Failed envelope. Its HTTP status is 200 but for what is not about a sandbox (401, 500)."""
    result = {"code": code, "exit_code": -1, "failure_reason": reason, **fields}
    if sandbox_id is not None:
        result["sandbox_id"] = sandbox_id
    body = {"status": "Failed", "message": reason, "error": reason, "result": result}
    return JSONResponse(jsonable_encoder(body), status_code=status)
