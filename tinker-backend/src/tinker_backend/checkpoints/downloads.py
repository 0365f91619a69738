"""Signed, expiring links to the files of external checkpoints, served by this server itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

from ..errors import Forbidden

LIFETIME_SECONDS = 3600


class LinkSigner:
    """Makes and checks tokens: base64 of a JSON claim and its HMAC-SHA256."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, claim: dict[str, Any], lifetime: float = LIFETIME_SECONDS) -> tuple[str, float]:
        """A token for ``claim`` and the time when it expires."""
        expires = time.time() + lifetime
        text = json.dumps({**claim, "exp": expires}, separators=(",", ":")).encode()
        mac = hmac.digest(self._secret, text, hashlib.sha256)
        return base64.urlsafe_b64encode(mac + text).decode().rstrip("="), expires

    def open(self, token: str) -> dict[str, Any]:
        """The claim of a good token. Raises Forbidden."""
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except ValueError as error:
            raise Forbidden("this link is not one of this server's") from error
        mac, text = raw[:32], raw[32:]
        if not hmac.compare_digest(mac, hmac.digest(self._secret, text, hashlib.sha256)):
            raise Forbidden("this link is not one of this server's")
        claim: dict[str, Any] = json.loads(text)
        if claim["exp"] < time.time():
            raise Forbidden("this link has expired; ask for a new one")
        return claim
