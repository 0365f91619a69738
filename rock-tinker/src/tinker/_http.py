"""One HTTP client: headers, retries, errors. Everything above it speaks in paths below ``/api/v1``."""

from __future__ import annotations

import email.utils
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from . import _pace
from ._auth import Credential
from ._errors import (
    APIConnectionError,
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    status_error,
)
from ._headers import method_headers
from ._settings import logger
from ._transport import new_transport

M = TypeVar("M", bound=BaseModel)

DEFAULT_TIMEOUT_SECONDS = 60.0
_CONNECT_TIMEOUT_SECONDS = 5.0
_MAX_RETRY_AFTER_SECONDS = 60.0
_RETRIED = (408, 409, 429)
_QUIET_TRIES = 2
_SILENCE_SECONDS = 60.0
_told: dict[str, float] = {}
"""When it was last said that a server does not answer."""


@dataclass(frozen=True)
class Call:
    """One request of the API.

    ``path`` is relative to ``/api/v1``; ``json`` is a wire model or a plain dict; ``content`` raw bytes instead of it.
    """

    method: str
    path: str
    json: BaseModel | Mapping[str, Any] | None = None
    content: bytes | None = None
    params: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    retries: int = _pace.HTTP_RETRIES
    idempotency_key: str | None = None
    follow_redirects: bool = True


@dataclass
class ResetBudget:
    """How many answers of status 400 without a length may be taken for a proxy's refusal, per pool."""

    limit: int = 16
    left: int = 16

    def spend(self) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        return True

    def refill(self) -> None:
        self.left = min(self.left + 1, self.limit)


def tell_silence(base_url: str, error: Exception, what_now: str) -> None:
    """Says that the server does not answer, once a minute however many calls wait for it."""
    now = time.monotonic()
    if now - _told.get(base_url, -_SILENCE_SECONDS) >= _SILENCE_SECONDS:
        _told[base_url] = now
        logger.warning("%s does not answer (%s); %s", base_url, error, what_now)


class HttpClient:
    """Sends calls over one connection pool."""

    def __init__(
        self, base_url: str, headers: Mapping[str, str], credential: Credential, budget: ResetBudget | None = None
    ) -> None:
        self._base_url = base_url
        self._headers = dict(headers)
        self._credential = credential
        self._budget = budget or ResetBudget()
        self._client = self._new_client()

    @staticmethod
    def _new_client() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=new_transport(), trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, call: Call) -> httpx.Response:
        """The answer, its body read and its status below 400.

        Raises an APIError after as many retries as ``call.retries`` allows. All tries share one idempotency key.
        """
        key = call.idempotency_key or f"stainless-python-retry-{uuid.uuid4()}"
        tries = 0
        replayed = False
        while True:
            token = await self._credential.token()
            request = self._build(call, key, tries, token)
            response: httpx.Response | None = None
            error: APIConnectionError | APIStatusError
            try:
                response = await self._client.send(request, follow_redirects=call.follow_redirects)
            except httpx.TimeoutException:
                error = APITimeoutError(request)
            except httpx.HTTPError as cause:
                error = APIConnectionError(request, f"Connection error: {str(cause) or type(cause).__name__}")
                error.__cause__ = cause
            else:
                _log_deprecation(response)
                if response.status_code < 400:
                    self._budget.refill()
                    return response
                if await self._is_proxy_refusal(response):
                    raise APIConnectionError(request, "Connection reset after a 400 without Content-Length.")
                error = status_error(response)
                if not replayed and _is_invalid_token(response) and await self._credential.replace(token):
                    replayed = True
                    continue
            if tries >= call.retries or not _should_retry(response):
                raise error
            delay = _retry_delay(response, tries)
            logger.debug("%s %s: %s; next try in %.2f s", call.method, call.path, error, delay)
            if response is None and tries >= _QUIET_TRIES:
                tell_silence(self._base_url, error, "trying on for some minutes")
            await _pace.sleep(delay)
            tries += 1

    async def fetch(self, call: Call, model: type[M]) -> M:
        """The answer as ``model``; APIResponseValidationError if it has another form."""
        return parse(await self.send(call), model)

    def _build(self, call: Call, key: str, tries: int, token: str) -> httpx.Request:
        headers = {
            **self._headers,
            "X-API-Key": token,
            "x-stainless-retry-count": str(tries),
            "x-stainless-read-timeout": f"{call.timeout:g}",
            **method_headers(),
        }
        content = call.content
        if call.method != "GET":
            headers["X-Idempotency-Key"] = key
            headers["Content-Type"] = "application/json"
        if call.json is not None:
            content = encode_json(call.json)
        headers.update(call.headers)
        timeout = httpx.Timeout(call.timeout, connect=min(_CONNECT_TIMEOUT_SECONDS, call.timeout))
        url = f"{self._base_url}/api/v1/{call.path}"
        params = {k: v for k, v in (call.params or {}).items() if v is not None}
        return self._client.build_request(
            call.method, url, content=content, params=params or None, headers=headers, timeout=timeout
        )

    async def _is_proxy_refusal(self, response: httpx.Response) -> bool:
        """A 400 without a body length comes from something between us and the server: reconnect."""
        if response.status_code != 400 or response.headers.get("content-length", "0") != "0":
            return False
        if not self._budget.spend():
            return False
        old, self._client = self._client, self._new_client()
        await old.aclose()
        return True


def encode_json(body: BaseModel | Mapping[str, Any]) -> bytes:
    """Models without their None fields; plain mappings as they are."""
    if isinstance(body, BaseModel):
        return body.model_dump_json(exclude_none=True).encode()
    return json.dumps(body, separators=(",", ":")).encode()


def parse(response: httpx.Response, model: type[M]) -> M:
    """The body as ``model``; raises APIResponseValidationError."""
    body: object = response.text
    try:
        body = response.json()
        return model.model_validate(body)
    except (ValueError, ValidationError) as error:
        raise APIResponseValidationError(
            response, body, f"answer of {response.request.url.path} is not a {model.__name__}: {error}"
        ) from error


def _is_invalid_token(response: httpx.Response) -> bool:
    challenge = response.headers.get("www-authenticate", "")
    return response.status_code == 401 and 'error="invalid_token"' in challenge


def _should_retry(response: httpx.Response | None) -> bool:
    if response is None:
        return True
    advice = response.headers.get("x-should-retry")
    if advice in ("true", "false"):
        return advice == "true"
    return response.status_code in _RETRIED or response.status_code >= 500


def _retry_delay(response: httpx.Response | None, tries: int) -> float:
    wished = _retry_after(response.headers) if response is not None else None
    if wished is not None and 0 < wished <= _MAX_RETRY_AFTER_SECONDS:
        return wished
    return _pace.HTTP_RETRY.delay(tries)


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds that the server asks for: ``retry-after-ms``, ``retry-after`` as a number or as a date."""
    try:
        return float(headers["retry-after-ms"]) / 1000
    except (KeyError, ValueError):
        pass
    value = headers.get("retry-after", "")
    try:
        return float(value)
    except ValueError:
        parsed = email.utils.parsedate_tz(value)
        return None if parsed is None else email.utils.mktime_tz(parsed) - time.time()


def _log_deprecation(response: httpx.Response) -> None:
    note = response.headers.get("x-deprecation-note")
    if note:
        (logger.error if response.headers.get("x-deprecation-level") == "error" else logger.warning)(note)
