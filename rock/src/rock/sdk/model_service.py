"""The puller's client of a ModelService: fetch the agent's next request, answer it, learn of the session's end."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

from rock.errors import ModelServiceError
from rock.model_service.messages import ModelRequest, SessionEnd, parse_pull
from rock.sdk.model_service_channel import ChannelError, ModelServiceChannel

PULL_SLICE_SECONDS = 25.0
"""Longest single long poll. A command in a sandbox may run for 85 s; shorter slices also notice a lost link sooner."""

PATIENCE_SECONDS = 20.0
"""How long a broken channel is tried again before the failure is reported."""


class ModelServiceRefused(ModelServiceError):
    """The service refused what was asked. ``status`` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ModelServiceUnreachable(ModelServiceError):
    """No answer came over the channel for ``PATIENCE_SECONDS`` seconds."""


@dataclass(frozen=True)
class ModelError:
    """An answer that tells the agent that its request failed, for example an over-long prompt (status 400, code
    ``context_length_exceeded``). OpenAI clients try statuses from 500 on again, others not."""

    message: str
    status: int = 500
    type: str | None = None
    code: str | None = None

    def to_json(self) -> dict[str, Any]:
        kind = self.type or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "status": self.status, "type": kind, "code": self.code}}


class ModelServiceClient:
    """Speaks to one ModelService over a channel.

    Several requests may be open at once: ``next_request`` hands out each request once, in order, whether or not earlier ones
    are answered. Lost replies and lost calls are repeated; the service makes that harmless.
    """

    def __init__(self, channel: ModelServiceChannel, *, after: int = 0) -> None:
        self.channel = channel
        self._after = after
        self._poll: asyncio.Task[ModelRequest | SessionEnd | None] | None = None

    async def next_request(self, timeout: float) -> ModelRequest | SessionEnd | None:
        """The agent's next request, or the end of the session, or None when neither came within ``timeout`` seconds.

        Raises:
            ModelServiceRefused: the service refused the call.
            ModelServiceUnreachable: the channel stayed broken.
        """
        deadline = time.monotonic() + timeout
        while True:
            if self._poll is None:
                self._poll = asyncio.create_task(self._pull())
            done, _ = await asyncio.wait({self._poll}, timeout=max(deadline - time.monotonic(), 0.0))
            if not done:
                return None
            poll, self._poll = self._poll, None
            found = poll.result()
            if isinstance(found, ModelRequest):
                self._after = max(self._after, found.index)
                # The long poll for the following request is on its way while the caller still works on this one.
                self._poll = asyncio.create_task(self._pull())
            if found is not None:
                return found

    async def _pull(self) -> ModelRequest | SessionEnd | None:
        path = f"/pull?after={self._after}&timeout={PULL_SLICE_SECONDS:g}"
        return parse_pull(await self._call("GET", path, None, PULL_SLICE_SECONDS + 15.0))

    async def respond(self, index: int, body: dict[str, Any] | ModelError) -> None:
        """Answers a request with a chat completion or an error. Repeating the same answer does no harm.

        Raises:
            ModelServiceRefused: no such index (404), another answer stands already (409), or the body is no chat completion (400).
            ModelServiceUnreachable: the channel stayed broken.
        """
        answer = body.to_json() if isinstance(body, ModelError) else body
        await self._call("POST", f"/answers/{index}", json.dumps(answer).encode(), 60.0)

    async def watch(self, pid: int, exit_code_file: str | None = None) -> None:
        """Lets the session end when process ``pid`` of the sandbox ends. Raises ModelServiceRefused when there is no such process."""
        await self._call(
            "POST", "/v1/agent/watch", json.dumps({"pid": pid, "exit_code_file": exit_code_file}).encode(), 15.0
        )

    async def end(self, reason: str, exit_code: int | None = None) -> None:
        """Ends the session: parked requests of the agent fail at once."""
        await self._call("POST", "/v1/agent/end", json.dumps({"reason": reason, "exit_code": exit_code}).encode(), 15.0)

    async def health(self) -> dict[str, Any]:
        """What the service says about itself: session open or ended, number of requests, number waiting."""
        return await self._call("GET", "/health", None, 10.0)

    async def is_up(self) -> bool:
        """Whether the service answers right now; no retries."""
        try:
            status, _ = await self.channel.exchange("GET", "/health", None, 5.0)
        except ChannelError:
            return False
        return status == 200

    async def aclose(self) -> None:
        """Closes the channel."""
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
            self._poll = None
        await self.channel.aclose()

    async def _call(self, method: str, path: str, body: bytes | None, timeout: float) -> dict[str, Any]:
        give_up = time.monotonic() + PATIENCE_SECONDS
        pause = 0.05
        while True:
            try:
                status, content = await self.channel.exchange(method, path, body, timeout)
                if status < 500:
                    return _decode(method, path, status, content)
                failure = f"status {status}: {content[:300]!r}"
            except ChannelError as error:
                failure = str(error)
            if time.monotonic() + pause >= give_up:
                raise ModelServiceUnreachable(
                    f"{method} {path.partition('?')[0]} failed for {PATIENCE_SECONDS:g} s: {failure}"
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)


def _decode(method: str, path: str, status: int, content: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(content)
    except ValueError:
        raise ModelServiceRefused(
            f"{method} {path} gave no JSON (status {status}): {content[:300]!r}", status
        ) from None
    if status >= 400:
        error = reply.get("error") if isinstance(reply, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        raise ModelServiceRefused(message or f"{method} {path} failed with status {status}: {content[:300]!r}", status)
    if not isinstance(reply, dict):
        raise ModelServiceRefused(f"{method} {path} gave a JSON {type(reply).__name__}, not an object", status)
    return reply
