"""The ZeroMQ front of the runtime: a ROUTER socket, calls in, answers out in any order.

The socket is served by the main thread and the engine by its own, so ``ping`` is answered while torch computes, and a
``hello`` that comes early waits for the models.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq

from tinker_backend.runtime import messages
from tinker_backend.runtime.calls import Call
from tinker_backend.runtime.roles import RuntimeFault

log = logging.getLogger(__name__)

METHODS = frozenset(
    [
        "hello",
        "status",
        "ping",
        "create",
        "forward_backward",
        "optim_step",
        "save",
        "load",
        "drop_run",
        "publish",
        "load_sampler",
        "drop_sampler",
        "sample",
        "cancel",
        "read_weights_info",
    ]
)
_PARENT_POLL_MS = 1000
_LAST_WORDS = 2.0
"""Seconds that a runtime that cannot start waits for somebody who asks why."""
_PR_SET_PDEATHSIG = 1


class Service:
    """Serves one endpoint until ``stop``, a signal, or the end of the parent process."""

    def __init__(self, endpoint: str, parent: int | None, build: Callable[[], Any], version: str) -> None:
        self._endpoint = endpoint
        self._parent = parent
        self._build = build
        self._version = version
        self._outbox: queue.SimpleQueue[tuple[list[bytes], bytes]] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._bell_path = f"inproc://bell-{id(self)}"
        self._ready = threading.Event()
        self._early: list[tuple[list[bytes], dict[str, Any]]] = []
        self._built: Any = None
        self._failure: str | None = None
        self._failure_told = False
        self._running = True
        self._bells = threading.local()

    def run(self) -> int:
        """Serves; returns the exit status: 0 after a stop, 1 when the models could not be loaded."""
        if self._parent is not None:
            _ask_for_hangup_with_parent()
        alarm, alarm_sender = socket.socketpair()
        alarm.setblocking(False)
        alarm_sender.setblocking(False)
        signal.set_wakeup_fd(alarm_sender.fileno())
        self._take_signals()
        taken_again = False
        ends: float | None = None
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 1000)
        router.set_hwm(0)
        router.bind(self._endpoint)
        bell = self._context.socket(zmq.PULL)
        bell.bind(self._bell_path)
        engine_thread = threading.Thread(target=self._engine, name="engine", daemon=True)
        engine_thread.start()
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(bell, zmq.POLLIN)
        poller.register(alarm.fileno(), zmq.POLLIN)
        try:
            while self._running:
                ready = dict(poller.poll(_PARENT_POLL_MS))
                if alarm.fileno() in ready:
                    alarm.recv(64)
                if bell in ready:
                    while bell.poll(0):
                        bell.recv()
                if router in ready:
                    while router.poll(0):
                        self._receive(router.recv_multipart())
                if self._ready.is_set() and not taken_again:
                    # Ray puts a handler of its own in their place, which ends the process at once.
                    self._take_signals()
                    taken_again = True
                if self._ready.is_set() and self._early:
                    early, self._early = self._early, []
                    for envelope, call in early:
                        self._dispatch(envelope, call)
                self._send_answers(router)
                if self._failure is not None and not self._early:
                    # A client that connected before the socket was there needs a moment to come back and ask.
                    ends = ends or time.monotonic() + _LAST_WORDS
                    if self._failure_told or time.monotonic() > ends:
                        break
                if self._parent is not None and os.getppid() != self._parent:
                    log.warning("the parent process %d is gone; the runtime ends", self._parent)
                    break
        finally:
            if self._built is not None:
                self._built.engine.stop()
                engine_thread.join(timeout=5)
            router.close()
            bell.close()
            self._context.destroy(linger=1000)
        return 0 if self._failure is None else 1

    def _take_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        # The kernel sends the hang-up when the thread that started this process ends; the process may live on.
        if number != signal.SIGHUP or self._parent is None or os.getppid() != self._parent:
            self._running = False

    def _engine(self) -> None:
        try:
            self._built = self._build()
        except Exception as error:
            log.error("the runtime cannot start: %s", error, exc_info=not isinstance(error, (ValueError, RuntimeFault)))
            self._failure = f"{error}"
        self._ready.set()
        self._ring()
        if self._built is not None:
            self._built.engine.run()

    def _ring(self) -> None:
        """Wakes the socket thread. Each thread has a sender of its own, as ZeroMQ sockets belong to one thread."""
        sender = getattr(self._bells, "sender", None)
        if sender is None:
            sender = self._context.socket(zmq.PUSH)
            sender.setsockopt(zmq.LINGER, 0)
            sender.connect(self._bell_path)
            self._bells.sender = sender
        try:
            sender.send(b"", zmq.NOBLOCK)
        except zmq.ZMQError:
            log.debug("the bell is full; the socket thread is awake anyway")

    # --- calls

    def _receive(self, frames: list[bytes]) -> None:
        *envelope, body = frames
        try:
            call = messages.unpack(body)
            call_id, method, params = call["id"], call["method"], call["params"]
            if not isinstance(params, dict) or not isinstance(method, str):
                raise ValueError("params must be a mapping and method a string")
        except Exception as error:
            log.warning("a message of %d bytes is no call: %s", len(body), error)
            return
        if method == "ping":
            self._put(envelope, {"id": call_id, "result": {}})
        elif method not in METHODS:
            self._put(envelope, _fault(call_id, RuntimeFault(f"method {method!r} is unknown", "server")))
        elif self._ready.is_set() and not self._early:
            self._dispatch(envelope, call)
        else:
            self._early.append((envelope, call))

    def _dispatch(self, envelope: list[bytes], call: dict[str, Any]) -> None:
        call_id, method, params = call["id"], call["method"], call["params"]
        if self._failure is not None:
            self._failure_told = True
            self._put(envelope, _fault(call_id, RuntimeFault(self._failure, "server")))
        elif method == "hello":
            self._put(envelope, {"id": call_id, "result": self._hello()})
        else:

            def reply(result: Any) -> None:
                if isinstance(result, BaseException):
                    fault = result if isinstance(result, RuntimeFault) else RuntimeFault(str(result))
                    self._put(envelope, _fault(call_id, fault))
                else:
                    self._put(envelope, {"id": call_id, "result": result})
                self._ring()

            def part(value: Any) -> None:
                self._put(envelope, {"id": call_id, "part": value})
                self._ring()

            self._built.engine.submit(Call(method, params, reply, part))

    def _hello(self) -> dict[str, Any]:
        built = self._built
        return {
            "version": self._version,
            "pid": os.getpid(),
            "device": str(built.device),
            "dtype": str(built.dtype).removeprefix("torch."),
            "threads": built.threads,
            "models": [base.card() for base in built.bases],
        }

    def _put(self, envelope: list[bytes], answer: dict[str, Any]) -> None:
        try:
            packed = messages.pack(answer)
        except Exception as error:
            log.exception("an answer cannot be sent")
            packed = messages.pack(_fault(answer["id"], RuntimeFault(f"the answer cannot be sent: {error}")))
        self._outbox.put((envelope, packed))

    def _send_answers(self, router: zmq.Socket[bytes]) -> None:
        while True:
            try:
                envelope, packed = self._outbox.get_nowait()
            except queue.Empty:
                return
            router.send_multipart([*envelope, packed])


def _fault(call_id: int, fault: RuntimeFault) -> dict[str, Any]:
    return {"id": call_id, "fault": {"message": str(fault), "category": fault.category}}


def _ask_for_hangup_with_parent() -> None:
    """Asks the kernel for SIGHUP when the parent dies; polling the parent id covers what that misses."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    except (OSError, AttributeError):
        log.debug("PR_SET_PDEATHSIG is not available here")
