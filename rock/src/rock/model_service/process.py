"""The service as a process: bind, serve, leave a state file, stop only what is ours."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STATE_FILE = "model_service.json"
LOG_FILE = "model_service.log"


class ServiceProcessError(RuntimeError):
    """The service could not be started, reached or stopped."""


@dataclass(frozen=True)
class ServiceState:
    """Where a running service is. ``started`` is the kernel's start time of the process, which tells a reused pid."""

    pid: int
    started: str
    host: str
    port: int

    @property
    def alive(self) -> bool:
        return process_start_time(self.pid) == self.started


def process_start_time(pid: int) -> str | None:
    """Start time of a running process in the kernel's clock ticks; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def read_state(data_dir: Path) -> ServiceState | None:
    """State of the service that was last started on this folder; None when there is none."""
    try:
        return ServiceState(**json.loads((data_dir / STATE_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Port 0 takes a free one.

    Raises:
        ServiceProcessError: the address cannot be used.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit it. Without it each reply of two writes waits 40 ms for a delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServiceProcessError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --port"
        ) from error
    listener.listen(512)
    return listener


def serve(app: Any, listener: socket.socket, data_dir: Path, on_signal: Callable[[], None] | None = None) -> None:
    """Serves an ASGI app until SIGTERM or SIGINT. ``on_signal`` runs on the event loop when the signal comes."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            if on_signal is not None:
                loop.call_soon_threadsafe(on_signal)
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=3, h11_max_incomplete_event_size=1 << 20
    )
    server = Server(config)
    loop = asyncio.new_event_loop()
    host, port = listener.getsockname()[:2]
    state = ServiceState(os.getpid(), process_start_time(os.getpid()) or "", host, port)
    path = data_dir / STATE_FILE
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(asdict(state)))
    scratch.replace(path)
    try:
        loop.run_until_complete(server.serve(sockets=[listener]))
    finally:
        loop.close()
        if read_state(data_dir) == state:
            path.unlink(missing_ok=True)


def start_detached(run: Callable[[], None], data_dir: Path, timeout: float) -> ServiceState:
    """Runs ``run`` in a process of its own (a fork, so that one interpreter start is enough) and waits until it is healthy.

    Raises:
        ServiceProcessError: a service runs on this folder already, or the new one did not get healthy within ``timeout`` s.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    old = read_state(data_dir)
    if old is not None and old.alive:
        raise ServiceProcessError(
            f"a ModelService (pid {old.pid}, port {old.port}) runs on {data_dir} already; stop it first"
        )
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            log = os.open(data_dir / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((null, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            run()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            tail = (data_dir / LOG_FILE).read_text(errors="replace")[-2000:]
            raise ServiceProcessError(
                f"the ModelService ended at once with status {os.waitstatus_to_exitcode(status)}: {tail}"
            )
        state = read_state(data_dir)
        if state is not None and state.pid == child and is_healthy(state):
            return state
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    raise ServiceProcessError(
        f"the ModelService was not healthy within {timeout:g} s (--start-timeout); see {data_dir / LOG_FILE}"
    )


def is_healthy(state: ServiceState) -> bool:
    host = "127.0.0.1" if state.host in ("0.0.0.0", "::") else state.host
    connection = http.client.HTTPConnection(host, state.port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def stop(data_dir: Path, timeout: float = 5.0) -> bool:
    """Stops the service of this folder: SIGTERM, then SIGKILL after ``timeout`` seconds. False: none runs.

    A pid that belongs to another process by now is left alone.
    """
    state = read_state(data_dir)
    if state is None:
        return False
    stopped = False
    for sig in (signal.SIGTERM, signal.SIGKILL):
        if not state.alive:
            break
        os.kill(state.pid, sig)
        stopped = True
        deadline = time.monotonic() + timeout
        while state.alive and time.monotonic() < deadline:
            time.sleep(0.02)
    (data_dir / STATE_FILE).unlink(missing_ok=True)
    return stopped
