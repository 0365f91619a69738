"""Measures what docs/rock.md states: `python tests/rock/figures.py [--runtime docker --image NAME]`."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

_SERVER = (
    "import http.server as h; h.ThreadingHTTPServer(('127.0.0.1', 28080), h.SimpleHTTPRequestHandler).serve_forever()"
)


def _conftest() -> Any:
    spec = importlib.util.spec_from_file_location("rock_figures_stack", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def _times(count: int, action: Callable[[], Awaitable[Any]]) -> list[float]:
    found = []
    for _ in range(count):
        start = time.perf_counter()
        await action()
        found.append((time.perf_counter() - start) * 1000)
    return sorted(found)


def _line(name: str, times: list[float]) -> None:
    p50, p99 = statistics.median(times), times[min(len(times) - 1, int(len(times) * 0.99))]
    print(f"| {name} | {p50:.1f} | {p99:.1f} | {len(times)} |")


async def measure(stack: Any) -> None:
    print(f"\n{platform.platform()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, runtime {stack.runtime}\n")
    print("| what | p50 ms | p99 ms | n |\n|---|---|---|---|")
    boxes = []

    async def start() -> None:
        boxes.append(stack.sandbox(memory="512m"))
        await boxes[-1].start()

    starts = await _times(15, start)
    _line("start to ready (SDK, admin, worker, rocklet)", starts)
    box = boxes[0]
    _line("execute `true` (list)", await _times(150, lambda: box.execute(["true"])))
    _line("execute `true` (bash)", await _times(150, lambda: box.execute("true")))
    await box.create_session()
    _line("command in a session", await _times(150, lambda: box.arun("true", session="default")))
    _line("long command (nohup), `true`", await _times(50, lambda: box.arun("true", mode="nohup")))
    await box.start_job(["python3", "-c", _SERVER])
    await asyncio.sleep(1.5)
    _line(
        "HTTP GET to a port inside, through the admin",
        await _times(150, lambda: box.request("GET", 28080, "/proc/version")),
    )
    rest = iter(boxes)
    _line("stop", await _times(15, lambda: next(rest).close()))
    count = 32 if stack.runtime == "local" else 8
    begin = time.perf_counter()
    many = [stack.sandbox(memory="256m") for _ in range(count)]
    await asyncio.gather(*(one.start() for one in many))
    started = time.perf_counter()
    await asyncio.gather(*(one.execute("echo hi") for one in many))
    used = time.perf_counter()
    await asyncio.gather(*(one.close() for one in many))
    end = time.perf_counter()
    print(
        f"\n{count} sandboxes at once: all started in {started - begin:.2f} s, one command in each {used - started:.2f} s, "
        f"all stopped in {end - used:.2f} s"
    )
    begin = time.perf_counter()
    for _ in range(20):
        async with stack.sandbox(memory="256m"):
            pass
    print(f"start and stop in a row: {(time.perf_counter() - begin) / 20 * 1000:.0f} ms a cycle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", choices=["local", "docker"], default="local")
    parser.add_argument("--image", default="rock-test:base")
    parser.add_argument("--docker-url")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rock-figures-", dir="/var/tmp"))
    stack = _conftest().RockStack(folder, runtime=options.runtime)
    section: dict[str, Any] = {"type": options.runtime, "image_aliases": {"local": options.image}}
    if options.docker_url:
        section["docker_url"] = options.docker_url
    stack.write_config(**({"runtime": section} if options.runtime == "docker" else {}))
    try:
        stack.start("worker")
        stack.start("admin")
        asyncio.run(measure(stack))
    finally:
        stack.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
