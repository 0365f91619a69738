"""HTTP side of the pull mode. Starlette alone, since the service starts anew in every sandbox and must be up at once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from rock.model_service.chat import BadChatRequest, complete_answer, error_body, parse_request, stream_events
from rock.model_service.journal import Journal
from rock.model_service.messages import NOTHING, ModelRequest
from rock.model_service.request_queue import ParkedRequest, QueueError, RequestQueue
from rock.model_service.watcher import is_running, read_status, wait_process

logger = logging.getLogger("rock.model_service")

RECORDED_HEADERS = ("user-agent", "x-session-id", "x-request-id", "idempotency-key", "x-stainless-retry-count")
TOKEN_HEADER = "x-rock-puller-token"
LONGEST_PULL_SECONDS = 60.0

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class ServiceConfig:
    """Settings of the pull mode.

    ``request_timeout`` bounds, in seconds, how long a client waits for its answer. ``max_body_bytes`` bounds bodies of both
    sides. ``token`` is asked of pullers, so that the agent cannot answer itself; None asks nothing.
    """

    data_dir: Path
    models: tuple[str, ...] = ("local",)
    request_timeout: float = 1800.0
    max_body_bytes: int = 256 * 1024 * 1024
    token: str | None = None


class BodyTooLarge(Exception):
    pass


class ModelServiceServer:
    """The service of one session: routes over a RequestQueue and its Journal."""

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.queue = RequestQueue()
        self.journal = Journal(config.data_dir / "trajectory.jsonl")
        self._watches: dict[int, asyncio.Task[None]] = {}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._health, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._model, methods=["GET"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/pull", self._for_pullers(self._pull), methods=["GET"]),
                Route("/answers/{index:int}", self._for_pullers(self._answer), methods=["POST"]),
                Route("/v1/agent/watch", self._for_pullers(self._watch), methods=["POST"]),
                Route("/v1/agent/end", self._for_pullers(self._end), methods=["POST"]),
            ],
            exception_handlers={404: self._not_found},
            lifespan=self._lifespan,
        )

    # --- the agent's side -------------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        try:
            raw = await self._read_body(request)
            body = parse_request(raw)
        except BadChatRequest as error:
            return _error(str(error), 400)
        except BodyTooLarge:
            return _error(f"the body is larger than {self.config.max_body_bytes} bytes", 413)
        except ClientDisconnect:
            return Response(status_code=499)
        headers = {k: request.headers[k] for k in RECORDED_HEADERS if k in request.headers}
        try:
            record = await self.queue.park(
                body,
                headers,
                _fingerprint(raw, request),
                idempotency_key=request.headers.get("idempotency-key"),
                is_retry=_retry_count(request) > 0,
            )
        except QueueError as error:
            return _error(str(error), error.status)
        if record.clients == 1 and not record.pulled and record.answer is None:
            self.journal.write("request", index=record.index, headers=headers, body=body)
        return await self._answer_or_gone(request, record, body)

    async def _answer_or_gone(self, request: Request, record: ParkedRequest, body: dict[str, Any]) -> Response:
        """Waits for the answer and, at the same time, for the client to hang up."""
        answer_task = asyncio.ensure_future(self.queue.wait_answer(record, self.config.request_timeout))
        gone_task = asyncio.ensure_future(_hung_up(request))
        delivered = False
        try:
            await asyncio.wait({answer_task, gone_task}, return_when=asyncio.FIRST_COMPLETED)
            if not answer_task.done():
                logger.info("client of request %d hung up", record.index)
                self.journal.write("client_gone", index=record.index)
                return Response(status_code=499)
            delivered = not gone_task.done()
            return _render(answer_task.result(), body)
        except QueueError as error:
            return _error(str(error), error.status)
        finally:
            self.queue.leave(record, delivered=delivered)
            for task in (answer_task, gone_task):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, QueueError):
                    await task

    async def _models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [_model_card(name) for name in self.config.models]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.config.models:
            return _error(f"model {name!r} does not exist; this service has {', '.join(self.config.models)}", 404)
        return _json(_model_card(name))

    # --- the puller's side ------------------------------------------------------------------------------------------

    async def _pull(self, request: Request) -> Response:
        try:
            after = int(request.query_params.get("after", "0"))
            timeout = float(request.query_params.get("timeout", "30"))
        except ValueError:
            return _error(
                "query fields 'after' and 'timeout' must be numbers, for example /pull?after=0&timeout=30", 400
            )
        if after < 0 or not 0 <= timeout <= LONGEST_PULL_SECONDS:
            return _error(f"'after' must be 0 or more and 'timeout' 0 to {LONGEST_PULL_SECONDS:g} seconds", 400)
        found = await self.queue.pull(after, timeout)
        if isinstance(found, ModelRequest):
            logger.info("request %d handed out", found.index)
        return _json(NOTHING if found is None else found.to_json())

    async def _answer(self, request: Request) -> Response:
        index = request.path_params["index"]
        try:
            answer = json.loads(await self._read_body(request))
            if not isinstance(answer, dict):
                raise BadChatRequest("the answer is no JSON object")
            record = self.queue.record(index)
            fresh = self.queue.answer(index, complete_answer(answer, record.body, index, record.received_at))
        except BodyTooLarge:
            return _error(f"the answer is larger than {self.config.max_body_bytes} bytes", 413)
        except ClientDisconnect:
            return Response(status_code=499)
        except QueueError as error:
            return _error(str(error), error.status)
        except (BadChatRequest, ValueError, RecursionError) as error:
            return _error(f"answer to request {index}: {error}", 400)
        if fresh:
            self.journal.write("answer", index=index, body=answer)
        return _json({"index": index, "status": "stored" if fresh else "known"})

    async def _watch(self, request: Request) -> Response:
        """Watches a process: when it ends, the session ends with the exit status found in ``exit_code_file``."""
        try:
            wish = json.loads(await self._read_body(request))
            pid = wish["pid"]
            status_file = wish.get("exit_code_file")
        except (ValueError, KeyError, TypeError, AttributeError):
            return _error('body must be an object like {"pid": 123, "exit_code_file": "/path"}', 400)
        if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
            return _error(f"field 'pid' is {pid!r}; it must be a positive whole number", 400)
        path = Path(status_file) if status_file else None
        if not is_running(pid) and await read_status(path) is None:
            return _error(f"process {pid} does not run, so it cannot be watched", 404)
        if pid not in self._watches:
            self._watches[pid] = asyncio.create_task(self._end_with(pid, path))
        return _json({"status": "watching", "pid": pid})

    async def _end(self, request: Request) -> Response:
        try:
            wish = json.loads(await self._read_body(request) or b"{}")
            reason, code = str(wish.get("reason") or "ended by the puller"), wish.get("exit_code")
        except (ValueError, AttributeError):
            return _error('body must be an object like {"reason": "...", "exit_code": 0}', 400)
        self.close(reason, code if isinstance(code, int) else None)
        return _json({"status": "ended"})

    async def _health(self, request: Request) -> Response:
        state = "open" if self.queue.end is None else "ended"
        return _json(
            {"status": "healthy", "session": state, "requests": self.queue.count, "waiting": self.queue.waiting}
        )

    async def _not_found(self, request: Request, error: Exception) -> Response:
        return _error(
            f"{request.method} {request.url.path} does not exist here; agents use POST /v1/chat/completions", 404
        )

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _end_with(self, pid: int, status_file: Path | None) -> None:
        await wait_process(pid)
        code = await read_status(status_file)
        self.close(f"process {pid} ended" + ("" if code is None else f" with exit code {code}"), code)

    def close(self, reason: str, exit_code: int | None) -> None:
        """Ends the session: parked clients and pullers learn of it at once."""
        if self.queue.close(reason, exit_code):
            logger.info("session ended: %s, %d requests", reason, self.queue.count)
            self.journal.write("session_end", reason=reason, exit_code=exit_code, requests=self.queue.count)

    async def _read_body(self, request: Request) -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self.config.max_body_bytes:
                raise BodyTooLarge
            parts.append(part)
        return b"".join(parts)

    def _for_pullers(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            token = self.config.token
            if token is not None and not hmac.compare_digest(
                request.headers.get(TOKEN_HEADER, "").encode(), token.encode()
            ):
                return _error(
                    f"header {TOKEN_HEADER} is missing or wrong; only the puller of this session may do this", 403
                )
            return await handler(request)

        return guarded

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self.close("the ModelService stopped", None)
        for task in self._watches.values():
            task.cancel()
        self.journal.close()


def _render(answer: dict[str, Any], body: dict[str, Any]) -> Response:
    error = answer.get("error")
    if error is not None:
        status = error.get("status", 500)
        status = status if isinstance(status, int) and 400 <= status <= 599 else 500
        return _error(error["message"], status, kind=error.get("type"), code=error.get("code"))
    if body.get("stream"):
        options = body.get("stream_options")
        usage = isinstance(options, dict) and bool(options.get("include_usage"))
        events = b"".join(stream_events(answer, include_usage=usage))
        return Response(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
    return _json(answer)


def _error(message: str, status: int, *, kind: str | None = None, code: str | None = None) -> Response:
    return _json(error_body(message, status, kind=kind, code=code), status_code=status)


def _json(content: dict[str, Any], status_code: int = 200) -> Response:
    """ASCII JSON: prompts may hold lone surrogates, which have no UTF-8 form."""
    return Response(json.dumps(content).encode(), status_code, media_type="application/json")


def _model_card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "local"}


def _fingerprint(raw: bytes, request: Request) -> str:
    """Identity of a request's content, per session of the agent."""
    digest = hashlib.sha256(raw)
    for name in ("authorization", "x-session-id"):
        digest.update(b"\0" + request.headers.get(name, "").encode())
    return digest.hexdigest()


def _retry_count(request: Request) -> int:
    value = request.headers.get("x-stainless-retry-count", "0")
    return int(value) if value.isdecimal() else 0


async def _hung_up(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
