"""The ZeroMQ connection to one runtime process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import zmq
import zmq.asyncio

from ..errors import RuntimeGone
from ..runtime import messages
from ..runtime.roles import RuntimeFault

log = logging.getLogger(__name__)


class RuntimeLink:
    """Calls to one life of the runtime. ``generation`` counts lives; a new life gets a new link."""

    def __init__(self, endpoint: str, generation: int) -> None:
        self.endpoint = endpoint
        self.generation = generation
        self.heard_at = time.monotonic()
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._listeners: dict[int, Callable[[Any], None]] = {}
        self._gone: RuntimeGone | None = None
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        # The queues of the dispatcher bound what is in flight; a high-water mark here would block or drop instead.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._reader: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Connects; the runtime may bind later."""
        self._socket.connect(self.endpoint)
        self._reader = asyncio.create_task(self._read(), name="runtime-link")

    @property
    def in_flight(self) -> int:
        """Calls without an answer yet."""
        return len(self._calls)

    async def call(
        self, method: str, timeout: float, *, on_part: Callable[[Any], None] | None = None, **params: Any
    ) -> Any:
        """One call. Raises RuntimeFault (the call failed), RuntimeGone (the runtime died) or TimeoutError.

        ``on_part`` gets what the runtime sends before its answer, for methods that stream.
        """
        if self._gone is not None:
            raise self._gone
        number = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        if on_part is not None:
            self._listeners[number] = on_part
        try:
            await self._socket.send(messages.pack({"id": number, "method": method, "params": params}))
            async with asyncio.timeout(timeout):
                return await answer
        except zmq.ZMQError as error:
            raise self._gone or RuntimeGone(f"the connection to the runtime failed: {error}") from error
        finally:
            self._calls.pop(number, None)
            self._listeners.pop(number, None)

    def close(self, reason: RuntimeGone) -> None:
        """Fails what is in flight and all later calls with ``reason``."""
        if self._gone is not None:
            return
        self._gone = reason
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(RuntimeGone(str(reason), in_flight=True))
        if self._reader is not None:
            self._reader.cancel()
        self._socket.close()
        self._context.term()

    async def _read(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            while True:
                frames = await self._socket.recv_multipart()
                self.heard_at = time.monotonic()
                try:
                    message = messages.unpack(frames[-1])
                    answer = self._calls.get(message["id"])
                except Exception:
                    log.exception("an answer of the runtime could not be decoded")
                    continue
                if answer is None or answer.done():
                    continue
                if "part" in message:
                    if (listener := self._listeners.get(message["id"])) is not None:
                        listener(message["part"])
                    continue
                fault = message.get("fault")
                if fault is not None:
                    answer.set_exception(RuntimeFault(fault["message"], fault["category"]))
                else:
                    answer.set_result(message.get("result"))
