"""The life of a server: it opens its ledger and its port, waits for the runtime, and ends in order on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator

import click
import uvicorn

from ..config import RuntimeConfig
from ..supervisor import Supervisor
from .app import create_app
from .backend import Backend


class _Server(uvicorn.Server):
    """Leaves signals to ``_serve``, which has more to end than connections."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures nothing."""
        yield


def serve_until_signal(config: RuntimeConfig, supervisor: Supervisor, listener: socket.socket) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status. Raises ConfigError, BackendError."""
    return asyncio.run(_serve(Backend.build(config, supervisor), listener))


async def _serve(backend: Backend, listener: socket.socket) -> int:
    config = backend.config
    address = f"http://{config.backend.host}:{listener.getsockname()[1]}"
    server = _Server(
        uvicorn.Config(
            create_app(backend),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=120,
            timeout_graceful_shutdown=3,
            h11_max_incomplete_event_size=config.limits.header_bytes + 4096,
            server_header=False,
        )
    )
    received: list[int] = []

    def end(number: int) -> None:
        received.append(number)
        server.should_exit = True
        server.force_exit = len(received) > 1
        backend.release_polls()
        if not starting.done():
            starting.cancel()

    await backend.open()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    starting = asyncio.create_task(backend.start())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        # The port is open while the models load: requests that need them wait, health says "starting".
        await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not starting.cancelled():
            starting.result()
            click.echo(f"ready on {address}", err=False)
            sys.stdout.flush()
        await serving
    finally:
        server.should_exit = True
        if not starting.done():
            starting.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        if backend.promises.pending:
            click.echo(
                "ending; the runtime has some seconds for what it computes, the rest waits in the ledger", err=True
            )
        await backend.stop()
    return 128 + received[0] if received and received[0] == signal.SIGINT else 0
