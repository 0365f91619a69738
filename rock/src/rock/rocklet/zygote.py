"""Starts rocklets inside sandboxes in milliseconds: a process that has everything imported and forks.

The forked child joins the sandbox's namespaces and serves there on a listening socket that it was handed, so the
sandbox needs neither Python nor our packages, and no socket file is visible in it. Nothing may be imported after the
fork (the file system is the sandbox's by then): at its start the zygote serves one request of each kind to itself.

`python -m rock.rocklet.zygote FD`: FD is a SOCK_SEQPACKET socket; each packet is an enter request (see
`rock.runtime.local.enter`) with two descriptors, the listening socket and the log. End of file ends the zygote.
"""

from __future__ import annotations

import array
import asyncio
import gc
import json
import os
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
import websockets

from rock.rocklet.app import create_app
from rock.rocklet.server import listen, make_server, serve
from rock.runtime.local import syscalls as sc
from rock.runtime.local.enter import join
from rock.runtime.local.keeper import set_rlimits
from rock.runtime.local.seccomp import restrict
from rock.runtime.local.spec import Limits

_WARM_UP_SECONDS = 25.0


async def _warm_up(folder: Path) -> None:
    """Serves requests of each kind, so that every module they need is imported."""
    path = str(folder / "z.sock")
    server = make_server(create_app(folder / "state"))
    task = asyncio.create_task(server.serve([listen(path)]))
    while not server.started:
        await asyncio.sleep(0.005)
    port = socket.create_server(("127.0.0.1", 0))
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://z", timeout=30) as client:
        file = str(folder / "file")
        for route, body in {
            "/execute": {"command": ["/bin/sh", "-c", "exit 0"], "stdin": "x"},
            "/create_session": {},
            "/run_in_session": {"command": "true"},
            "/close_session": {},
            "/write_file": {"path": file, "content": "x"},
            "/read_file": {"path": file, "encoding": "latin-1"},
            "/start_job": {"command": ["/bin/true"]},
            "/poll_job": {"job_id": "none"},
            "/kill_job": {"no": "id"},
        }.items():
            await client.post(route, json=body)
        await client.post("/upload", files={"file": ("n", b"x")}, data={"target_path": file, "unzip": "false"})
        await client.get("/download", params={"path": file})
        archive = await client.get("/download_dir", params={"path": str(folder / "state")})
        await client.post("/upload_dir", params={"path": str(folder / "copy")}, content=archive.content)
        for route in ("/", "/is_alive", "/get_statistics", "/missing", "/proxy/1/x"):
            await client.get(route)
        answer = asyncio.create_task(client.get(f"/proxy/{port.getsockname()[1]}/x"))
        connection, _ = await asyncio.to_thread(port.accept)
        await asyncio.to_thread(connection.recv, 4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await answer
        connection.close()
    try:
        async with websockets.unix_connect(path, "ws://z/portforward?port=1"):
            pass
    except websockets.exceptions.WebSocketException:
        pass
    async with websockets.unix_connect(path, f"ws://z/portforward?port={port.getsockname()[1]}") as forward:
        await forward.send(b"x")
    port.close()
    server.should_exit = True
    await task


def main() -> None:
    """Serves fork requests until the other end of the socket is closed."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    control = socket.socket(fileno=int(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="rock-zygote-") as folder:
        asyncio.run(asyncio.wait_for(_warm_up(Path(folder)), _WARM_UP_SECONDS))
    if threading.active_count() != 1:
        raise RuntimeError(f"threads left after the warm-up: {threading.enumerate()}")
    sys.path.clear()  # a forgotten import must fail, not run a file of the sandbox
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(b"warm")
    while True:
        packet, ancillary, _, _ = control.recvmsg(1 << 20, socket.CMSG_SPACE(2 * array.array("i").itemsize))
        if not packet:
            return
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        if os.fork() == 0:
            control.close()
            _carry(json.loads(packet), list(descriptors))
        for fd in descriptors:
            os.close(fd)


def _carry(request: dict[str, Any], descriptors: list[int]) -> None:
    """In the fork: joins the sandbox and serves in a child of its own, which lives in the sandbox's pid namespace."""
    listener_fd, log_fd = descriptors
    code = 1
    try:
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        join(request)
        child = os.fork()
        if child == 0:
            _serve(request, listener_fd)
        os.close(listener_fd)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status) & 0xFF
    except BaseException as error:
        os.write(2, f"rocklet did not start: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _serve(request: dict[str, Any], listener_fd: int) -> None:
    code = 1
    try:
        os.setsid()
        set_rlimits(Limits(**request["limits"]), request["missing"])
        restrict()
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) > 2 and int(fd) != listener_fd:
                try:
                    os.close(int(fd))
                except OSError:
                    continue
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        tempfile.tempdir = "/tmp"
        os.makedirs("/tmp", exist_ok=True)
        asyncio.run(serve(create_app(), socket.socket(fileno=listener_fd)))
        code = 0
    except BaseException as error:
        os.write(2, f"rocklet ended: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
