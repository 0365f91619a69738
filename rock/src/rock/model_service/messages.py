"""What the service and the puller say to each other. Standard library only, so that every Python can speak it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelRequest:
    """One parked chat completion of the agent.

    ``index`` counts the requests of the session from 1. ``received_at`` is Unix time in seconds. ``abandoned`` names earlier
    requests that were handed out, are unanswered, and have no client waiting any more: sampling for them may stop.
    """

    index: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    received_at: float = 0.0
    abandoned: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "request",
            "index": self.index,
            "received_at": self.received_at,
            "headers": self.headers,
            "abandoned": list(self.abandoned),
            "body": self.body,
        }


@dataclass(frozen=True)
class SessionEnd:
    """The agent's process is over: nothing will be asked any more.

    ``exit_code`` is None when nobody could learn it. ``requests`` counts all requests of the session: 0 means that the agent
    ended before it asked anything, which a rollout must treat as a failure.
    """

    reason: str
    exit_code: int | None = None
    requests: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"type": "session_end", "reason": self.reason, "exit_code": self.exit_code, "requests": self.requests}


NOTHING: dict[str, Any] = {"type": "nothing"}
"""The answer to a long poll that ran out of time while nothing was waiting."""


def parse_pull(reply: Any) -> ModelRequest | SessionEnd | None:
    """Reads the reply to a pull. None: nothing was waiting.

    Raises:
        ValueError: the reply is none of the three kinds.
    """
    kind = reply.get("type") if isinstance(reply, dict) else None
    if kind == "nothing":
        return None
    if kind == "request":
        return ModelRequest(
            index=int(reply["index"]),
            body=dict(reply["body"]),
            headers=dict(reply.get("headers") or {}),
            received_at=float(reply.get("received_at") or 0.0),
            abandoned=tuple(reply.get("abandoned") or ()),
        )
    if kind == "session_end":
        code = reply.get("exit_code")
        return SessionEnd(
            str(reply.get("reason") or ""), None if code is None else int(code), int(reply.get("requests") or 0)
        )
    raise ValueError(f"reply to a pull has type {kind!r}; expected 'request', 'session_end' or 'nothing'")
