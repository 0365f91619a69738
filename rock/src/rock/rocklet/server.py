"""Serves a rocklet on a TCP port or a UNIX socket: `python -m rock.rocklet.server --uds PATH | --port N`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from rock.rocklet.app import create_app
from rock.rocklet.children import watch_children_by_descriptor


def make_server(app: FastAPI) -> uvicorn.Server:
    """A uvicorn server without access log whose open connections do not hold up its end."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=2, loop="asyncio",
        http="h11", ws="websockets-sansio" if _has_sansio() else "websockets", ws_max_size=1 << 30,
    )  # fmt: skip
    return uvicorn.Server(config)


def _has_sansio() -> bool:
    with contextlib.suppress(ImportError):
        import uvicorn.protocols.websockets.websockets_sansio_impl  # noqa: F401

        return True
    return False


def listen(uds: str) -> socket.socket:
    """A listening UNIX socket at `uds`, for this user alone; a stale one is replaced."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(uds)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(uds)
    os.chmod(uds, 0o600)
    listener.listen(256)
    return listener


async def serve(app: FastAPI, listener: socket.socket, heartbeat: Path | None = None, patience: float = 60.0) -> None:
    """Serves until SIGTERM; with `heartbeat` also until that file was not touched (or is gone) for `patience` seconds, which is how
    a rocklet in a container notices the death of its worker."""
    watch_children_by_descriptor()
    server = make_server(app)
    if heartbeat is None:
        await server.serve([listener])
        return

    async def watch() -> None:
        touched = time.time()
        while True:
            await asyncio.sleep(min(5.0, patience / 3))
            with contextlib.suppress(OSError):  # a file that is gone will not be touched again
                touched = heartbeat.stat().st_mtime
            if time.time() - touched > patience:
                server.should_exit = True

    watcher = asyncio.create_task(watch())
    try:
        await server.serve([listener])
    finally:
        watcher.cancel()


def main() -> None:
    """Entry point of the command line."""
    parser = argparse.ArgumentParser(prog="rocklet", description="Command agent of a sandbox")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--uds", help="path of the UNIX socket")
    where.add_argument("--port", type=int, help="TCP port")
    parser.add_argument("--host", default="127.0.0.1", help="address for --port (default: loopback only)")
    parser.add_argument("--heartbeat", type=Path, help="stop when this file was not touched for --patience seconds")
    parser.add_argument("--patience", type=float, default=60.0)
    options = parser.parse_args()
    _restore_environment()
    if options.uds:
        listener = listen(options.uds)
    else:
        listener = socket.create_server((options.host, options.port))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if os.getpid() == 1:
        keep_serving(listener, options.heartbeat, options.patience)
    else:
        asyncio.run(serve(create_app(), listener, options.heartbeat, options.patience))


def _restore_environment() -> None:
    """Variables that only the rocklet's own Python needed give way to those of the container (see docker_injection)."""
    for name, value in list(os.environ.items()):
        if name.startswith("ROCKLET_"):
            del os.environ[name]
            if value:
                os.environ[name.removeprefix("ROCKLET_")] = value
            else:
                os.environ.pop(name.removeprefix("ROCKLET_"), None)


def keep_serving(listener: socket.socket, heartbeat: Path | None, patience: float) -> None:
    """As the first process of a container: reaps orphans and starts the rocklet again when it was killed."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while not stopping:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            asyncio.run(serve(create_app(), listener, heartbeat, patience))
            os._exit(0)
        while True:
            pid, status = os.wait()
            if pid == child:
                break
        if os.waitstatus_to_exitcode(status) == 0:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
