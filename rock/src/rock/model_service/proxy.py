"""Proxy mode: pass chat completions on to an upstream, with retries, and record or replay them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rock.model_service.chat import BadChatRequest, error_body, parse_request
from rock.model_service.journal import Journal, read_journal

ATTEMPTS = 6
FIRST_BACKOFF_SECONDS = 2.0
FORWARDED_HEADERS = ("authorization", "content-type", "accept", "x-session-id", "idempotency-key")


@dataclass(frozen=True)
class ProxyConfig:
    """Where calls go. ``base_url`` wins over ``rules`` (model name to URL, with the key ``default`` for the rest)."""

    base_url: str | None = None
    rules: dict[str, str] = field(default_factory=dict)
    retryable_status: frozenset[int] = frozenset({429, 500})
    request_timeout: float = 120.0
    first_backoff: float = FIRST_BACKOFF_SECONDS
    recording_file: Path | None = None
    replay_file: Path | None = None

    def __post_init__(self) -> None:
        if self.recording_file and self.replay_file:
            raise ValueError("--recording-file and --replay-file exclude one another; give one of them")
        if not (self.base_url or self.rules or self.replay_file):
            raise ValueError("the proxy mode needs --proxy-base-url, --proxy-rule or --replay-file")

    def upstream(self, model: str) -> str | None:
        return self.base_url or self.rules.get(model) or self.rules.get("default")


def parse_rules(rules: tuple[str, ...]) -> dict[str, str]:
    """Reads ``MODEL=URL`` words. Raises ValueError for anything else."""
    parsed = {}
    for rule in rules:
        model, separator, url = rule.partition("=")
        if not separator or not model or not url.startswith(("http://", "https://")):
            raise ValueError(f"--proxy-rule {rule!r} is not of the form MODEL=http://host/v1")
        parsed[model] = url
    return parsed


class ProxyServer:
    """One proxy with its upstream client, and its recording or replay."""

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(config.request_timeout, connect=10.0))
        self._recording = Journal(config.recording_file) if config.recording_file else None
        self._replay: list[dict[str, Any]] = []
        if config.replay_file:
            self._replay = [event for event in read_journal(config.replay_file) if event.get("type") == "call"]
        self._replayed = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ],
            lifespan=self._lifespan,
        )

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "healthy", "mode": "replay" if self.config.replay_file else "proxy"})

    async def _chat(self, request: Request) -> Response:
        try:
            raw = await request.body()
            body = parse_request(raw)
        except BadChatRequest as error:
            return JSONResponse(error_body(str(error), 400), status_code=400)
        if self.config.replay_file:
            return self._next_replay(bool(body.get("stream")))
        model = str(body.get("model") or "")
        upstream = self.config.upstream(model)
        if upstream is None:
            message = f"field 'model' is {model!r}, for which no --proxy-rule exists (nor one for 'default')"
            return JSONResponse(error_body(message, 404), status_code=404)
        headers = {k: request.headers[k] for k in FORWARDED_HEADERS if k in request.headers}
        started = time.time()
        try:
            reply = await self._send(upstream.rstrip("/") + "/chat/completions", raw, headers)
        except httpx.HTTPError as error:
            message = f"upstream {upstream} could not be reached: {type(error).__name__}: {error}"
            self._record(body, 502, started, None, message)
            return JSONResponse(error_body(message, 502), status_code=502)
        if body.get("stream") and reply.status_code == 200:
            return StreamingResponse(self._pass_on(reply, body, started), media_type="text/event-stream")
        content = await reply.aread()
        await reply.aclose()
        self._record(body, reply.status_code, started, _as_json(content), None)
        return Response(content, reply.status_code, media_type=reply.headers.get("content-type", "application/json"))

    async def _send(self, url: str, raw: bytes, headers: dict[str, str]) -> httpx.Response:
        """Sends until a final status, a failure that no retry heals, or the last attempt."""
        backoff = self.config.first_backoff
        for attempt in range(1, ATTEMPTS + 1):
            try:
                reply = await self._client.send(
                    self._client.build_request("POST", url, content=raw, headers=headers), stream=True
                )
                if reply.status_code not in self.config.retryable_status or attempt == ATTEMPTS:
                    return reply
                await reply.aclose()
            except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
                if attempt == ATTEMPTS:
                    raise
            await asyncio.sleep(backoff * random.uniform(0.75, 1.25))
            backoff *= 2
        raise AssertionError("unreachable")

    async def _pass_on(self, reply: httpx.Response, body: dict[str, Any], started: float) -> AsyncIterator[bytes]:
        parts, failure = [], None
        try:
            async for part in reply.aiter_raw():
                parts.append(part)
                yield part
        except httpx.HTTPError as error:
            failure = f"stream broke: {type(error).__name__}: {error}"
            yield b"data: " + json.dumps(error_body(failure, 502)).encode() + b"\n\n"
        finally:
            await reply.aclose()
            self._record(
                body, reply.status_code, started, {"events": b"".join(parts).decode("utf-8", "replace")}, failure
            )

    def _record(self, body: dict[str, Any], status: int, started: float, response: Any, error: str | None) -> None:
        if self._recording is None:
            return
        ended = time.time()
        self._recording.write(
            "call",
            model=body.get("model"),
            stream=bool(body.get("stream")),
            status=status,
            start_time=started,
            end_time=ended,
            response_time=ended - started,
            request=body,
            response=response,
            error=error,
        )

    def _next_replay(self, stream: bool) -> Response:
        if self._replayed >= len(self._replay):
            message = f"the replay file has {len(self._replay)} calls and all were used"
            return JSONResponse(error_body(message, 404), status_code=404)
        call = self._replay[self._replayed]
        self._replayed += 1
        response = call.get("response")
        if stream and isinstance(response, dict) and "events" in response:
            return Response(response["events"], media_type="text/event-stream")
        if response is None:
            return JSONResponse(error_body(str(call.get("error")), 502), status_code=int(call["status"]))
        return JSONResponse(response, status_code=int(call["status"]))

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self._client.aclose()
        if self._recording is not None:
            self._recording.close()


def _as_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return {"text": content.decode("utf-8", "replace")}
