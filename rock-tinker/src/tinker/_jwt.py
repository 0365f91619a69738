"""Reading JSON web tokens: claims and life time, without checking the signature (the server does that)."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

REFRESH_MARGIN_SECONDS = 60.0


def looks_like_jwt(credential: str) -> bool:
    return credential.startswith("eyJ")


def claims(token: str) -> dict[str, Any]:
    """The payload; an empty dict for anything that is not a token."""
    try:
        payload = token.split(".")[1]
        decoded = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def lifetime(token: str) -> tuple[float, float] | None:
    """(issued at, expires at) in seconds since the epoch; None if either is missing."""
    payload = claims(token)
    issued, expires = payload.get("iat"), payload.get("exp")
    if isinstance(issued, int | float) and isinstance(expires, int | float):
        return float(issued), float(expires)
    return None


def needs_refresh(token: str) -> bool:
    """Whether a minute or less remains. A token that cannot be read counts as expired."""
    span = lifetime(token)
    return span is None or span[1] - time.time() <= REFRESH_MARGIN_SECONDS
