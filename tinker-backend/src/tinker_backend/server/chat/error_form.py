"""The form of an error that is answered before a route is reached (no key, a body too large)."""

from __future__ import annotations

from typing import Any

from . import anthropic_answers, openai_answers


def error_body(path: str, status: int, message: str) -> dict[str, Any]:
    """What clients of the door at ``path`` expect; ``detail`` for all else."""
    if path.startswith("/oai/"):
        return openai_answers.error_body(status, message)
    if path.startswith("/anthropic/"):
        return anthropic_answers.error_body(status, message)
    return {"detail": message}
