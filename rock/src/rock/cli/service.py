"""Runs a web application in the foreground until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from rock.errors import ConfigError

_GRACE_SECONDS = 3


def configure_logs(level: str) -> None:
    """Log lines with time and level on standard error."""
    known = ("debug", "info", "warning", "error")
    if level not in known:
        raise ConfigError(f"logs.level {level!r}: use one of {', '.join(known)}")
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("httpx").setLevel("WARNING")
    logging.getLogger("httpcore").setLevel("WARNING")


def bind(host: str, port: int, key: str) -> socket.socket:
    """A listening socket.

    Args:
        key: name of the setting, for the message.

    Raises:
        ConfigError: the port is taken or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # Accepted connections inherit it. asyncio sets it only on sockets that were made with the protocol's number;
        # without it each answer of two writes waits 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} on {host} is in use: stop its owner or set another {key}") from error
        raise ConfigError(f"cannot listen on {host}:{port} ({key}): {error.strerror}") from error


def run_service(make_app: Callable[[Callable[[], None]], FastAPI], listener: socket.socket, name: str) -> None:
    """Serves `make_app(on_open)` on `listener`. The first Ctrl-C ends it in order; open requests get 3 seconds."""
    address = listener.getsockname()
    app = make_app(lambda: print(f"{name} listens on http://{address[0]}:{address[1]}", file=sys.stderr, flush=True))
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=_GRACE_SECONDS,
        ws_max_size=1 << 30, timeout_keep_alive=75,
    )  # fmt: skip
    server = uvicorn.Server(config)
    _stop_on(server)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve([listener]))
    if not server.started:
        sys.exit(1)


def _stop_on(server: uvicorn.Server) -> None:
    """SIGHUP (a closed terminal) ends the service like Ctrl-C."""
    signal.signal(signal.SIGHUP, lambda *_: setattr(server, "should_exit", True))
