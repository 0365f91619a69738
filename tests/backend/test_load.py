"""Many clients at once: no error, flat memory."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROUNDS = int(os.environ.get("TINKER_LOAD_ROUNDS", "4"))
PROMPT = {"chunks": [{"type": "encoded_text", "tokens": list(range(64))}]}


def resident_megabytes(pid: int) -> float:
    """Memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


class LeanClient:
    """HTTP/1.1 over kept connections, as many as there are requests at once; general clients slow down with thousands."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._opening = asyncio.Semaphore(100)

    async def post(self, route: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        if self._free:
            reader, writer = self._free.pop()
        else:
            async with self._opening:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        data = json.dumps(body).encode()
        head = f"POST /api/v1/{route} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.split("content-length: ")[1].split("\r\n")[0])
        document = json.loads(await reader.readexactly(length))
        self._free.append((reader, writer))
        return int(answer.split()[1]), document

    @property
    def connections(self) -> int:
        """Connections that are open and idle."""
        return len(self._free)

    def close(self) -> None:
        """Ends all connections."""
        for _, writer in self._free:
            writer.close()


async def sample(http: LeanClient, sampler: str, seq_id: int) -> None:
    """One sample from promise to result, with the retries of an SDK."""
    body = {"sampling_session_id": sampler, "seq_id": seq_id, "prompt": PROMPT, "sampling_params": {"max_tokens": 16}}
    status, promise = await http.post("asample", body)
    while status == 429:
        await asyncio.sleep(0.2)
        status, promise = await http.post("asample", body)
    assert status == 200, promise
    status, result = await http.post("retrieve_future", {"request_id": promise["request_id"]})
    while status == 408:
        status, result = await http.post("retrieve_future", {"request_id": promise["request_id"]})
    assert status == 200 and "sequences" in result, result


@pytest.fixture
def many_files() -> None:
    """Lets this process hold thousands of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384) if hard > 0 else 16384, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("many_files")
async def test_two_thousand_samples_at_once_from_sixty_four_sessions(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend({"sample_seconds": 0.5})
    wire = new_wire(backend.url)
    samplers = []
    for _ in range(64):
        body = {"session_id": wire.session(), "sampling_session_seq_id": 0, "base_model": "fake-model"}
        samplers.append(wire.post("create_sampling_session", **body)["sampling_session_id"])
    memory = []
    http = LeanClient(backend.port)
    for round_number in range(ROUNDS):
        started = time.monotonic()
        await asyncio.gather(*(sample(http, samplers[i % 64], round_number * 2000 + i) for i in range(2000)))
        seconds = time.monotonic() - started
        memory.append(resident_megabytes(backend.process.pid))
        print(f"round {round_number}: 2000 samples in {seconds:.1f} s, server at {memory[-1]:.0f} MB")
    print(f"{http.connections} connections")
    http.close()
    status = wire.http.get("status").json()
    assert status["pending"]["samples"] == 0 and status["runtime"]["restarts"] == 0
    assert memory[-1] < memory[2] * 1.1


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_one_process_with_the_sdk_samples_from_sixty_four_sessions(make_backend: Any) -> None:
    backend = make_backend({"sample_seconds": 0.5})
    script = str(Path(__file__).with_name("sdk_load.py"))
    client = subprocess.Popen(
        [sys.executable, script, backend.url, "64", "2000", str(ROUNDS)], stdout=subprocess.PIPE, text=True
    )
    figures = []
    assert client.stdout is not None
    for line in client.stdout:
        figures.append({**json.loads(line), "server_mb": resident_megabytes(backend.process.pid)})
        print({key: round(value, 1) for key, value in figures[-1].items()})
    assert client.wait(60) == 0 and len(figures) == ROUNDS
    for side in ("client_mb", "server_mb"):
        assert figures[-1][side] < figures[2][side] * 1.1, side


@pytest.mark.slow
async def test_sixty_four_sessions_train_at_once(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend()
    wire = new_wire(backend.url)
    runs = [wire.model() for _ in range(64)]
    http = LeanClient(backend.port)

    async def steps(run: str) -> float:
        for seq_id in range(1, 11):
            body = {"model_id": run, "seq_id": seq_id, "adam_params": {"learning_rate": 0.1}}
            _, promise = await http.post("optim_step", body)
            status, result = await http.post("retrieve_future", {"request_id": promise["request_id"]})
            assert status == 200, result
        return float(result["metrics"]["steps"])

    assert set(await asyncio.gather(*map(steps, runs))) == {10.0}
    http.close()


@pytest.mark.slow
def test_the_overhead_of_a_call_is_a_few_milliseconds(make_backend: Any, new_wire: Any) -> None:
    wire = new_wire(make_backend().url)
    run = wire.model()
    times = []
    for seq_id in range(1, 201):
        started = time.perf_counter()
        wire.result(wire.optim_step(run, seq_id))
        times.append(time.perf_counter() - started)
    median = statistics.median(times) * 1000
    print(f"promise and result of a no-op: p50 {median:.1f} ms")
    assert median < 50
