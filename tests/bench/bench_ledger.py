"""Throughput with the ledger on disk against the ledger in memory.

    python tests/bench/bench_ledger.py [--rounds 40] [--delay 0.02]

Runs both servers side by side over the embedded engine's stand-in of the tests, alternates between them so that the
load of the machine hits both alike, and prints training steps per second, their ratio, and how the ratio of single
rounds spreads: on a busy machine the spread says whether the ratio means anything. A step is a forward_backward of 400
tokens and an optim_step, sent without waiting; the stand-in sleeps ``delay`` seconds in each. With ``--delay 0`` the
server itself is all that is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def fixtures() -> Any:
    """The server process and HTTP client of the backend tests."""
    path = Path(__file__).parents[1] / "backend" / "conftest.py"
    spec = importlib.util.spec_from_file_location("bench_fixtures", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def steps(wire: Any, run: str, first: int, count: int, tokens: list[int]) -> float:
    """Seconds of ``count`` pipelined training steps."""
    started = time.perf_counter()
    promise: Any = None
    for step in range(count):
        wire.forward_backward(run, first + 2 * step, tokens=tokens)
        promise = wire.optim_step(run, first + 2 * step + 1)
    wire.result(promise)
    return time.perf_counter() - started


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used; other programs on the machine change it little."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--delay", type=float, default=0.02)
    arguments = parser.parse_args()
    rounds = arguments.rounds
    module = fixtures()
    tokens = [1 + i % 500 for i in range(400)]
    count = 10
    with tempfile.TemporaryDirectory() as folder:
        servers = {
            name: module.BackendProcess(
                Path(folder) / name, {"delay_seconds": arguments.delay}, {"ledger": {"url": url}}
            )
            for name, url in (("disk", None), ("memory", "memory"))
        }
        try:
            wires = {name: module.Wire(server.url) for name, server in servers.items()}
            runs = {name: wire.model() for name, wire in wires.items()}
            times: dict[str, list[float]] = {name: [] for name in servers}
            before = {name: processor_seconds(server.process.pid) for name, server in servers.items()}
            for number in range(rounds + 1):
                for name in sorted(servers, reverse=bool(number % 2)):
                    seconds = steps(wires[name], runs[name], 1 + number * 2 * count, count, tokens)
                    if number:  # the first round warms up
                        times[name].append(seconds)
            rates = {name: count / statistics.median(values) for name, values in times.items()}
            for name, rate in rates.items():
                spent = processor_seconds(servers[name].process.pid) - before[name]
                cost = 1000 * spent / (count * (rounds + 1))
                print(
                    f"ledger {name:6}  {rate:7.1f} steps/s  (median of {rounds} rounds of {count} steps), "
                    f"{cost:.1f} ms of the server's processor time a step"
                )
            print(f"disk / memory  {rates['disk'] / rates['memory']:.3f}")
            pairs = [memory / disk for disk, memory in zip(times["disk"], times["memory"], strict=True)]
            low, middle, high = statistics.quantiles(pairs, n=4)
            print(f"of one round   {middle:.3f}, the middle half from {low:.3f} to {high:.3f}")
            print(f"load average   {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        finally:
            for server in servers.values():
                server.stop()


if __name__ == "__main__":
    main()
