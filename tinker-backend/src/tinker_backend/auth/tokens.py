"""Short-lived signed tokens (JWT, RFC 7519, HS256) that stand for a key once it was checked.

The secret lives in the process only: after a restart every token is invalid, clients see the 401 that says so and
exchange their key again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

LIFETIME_SECONDS = 3600
ISSUER = "tinker-backend"
_HEADER = {"alg": "HS256", "typ": "JWT"}


class BadToken(Exception):
    """A token that is malformed, forged or past its time."""


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _sign(secret: bytes, signed: str) -> bytes:
    return hmac.new(secret, signed.encode("ascii"), hashlib.sha256).digest()


def issue(secret: bytes, claims: dict[str, Any], now: float | None = None) -> str:
    """A token with these claims and ``iss``, ``iat`` and ``exp``."""
    issued = int(time.time() if now is None else now)
    payload = {**claims, "iss": ISSUER, "iat": issued, "exp": issued + LIFETIME_SECONDS}
    signed = ".".join(_encode(json.dumps(part, separators=(",", ":")).encode()) for part in (_HEADER, payload))
    return f"{signed}.{_encode(_sign(secret, signed))}"


def verify(secret: bytes, token: str, now: float | None = None) -> dict[str, Any]:
    """The claims of a token. Raises BadToken; the algorithm is fixed, whatever the token's header says."""
    try:
        header_text, payload_text, signature = token.split(".")
        forged = not hmac.compare_digest(_sign(secret, f"{header_text}.{payload_text}"), _decode(signature))
        if forged or json.loads(_decode(header_text)) != _HEADER:
            raise BadToken("the token was not issued by this server")
        claims: dict[str, Any] = json.loads(_decode(payload_text))
        if claims["iss"] != ISSUER or claims["exp"] <= (time.time() if now is None else now):
            raise BadToken("the token is past its time")
    except (ValueError, KeyError, TypeError, UnicodeError) as error:
        raise BadToken("the token is malformed") from error
    return claims
