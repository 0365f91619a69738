"""A backend with the embedded engine on a free port, and what it costs in time, cores and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

_START_SECONDS = 120


class Backend:
    """``tinker-backend serve`` over a folder of its own."""

    def __init__(self, folder: Path, model: Path, dtype: str, threads: int) -> None:
        strategy = {"strategy_args": {"strategy_config": {"dtype": dtype}}}
        engine: dict[str, Any] = {
            "pretrain": str(model),
            "model_name": "bench",
            "threads": threads,
            "actor_train": strategy,
        }
        (folder / "engine.yaml").write_text(yaml.safe_dump(engine))
        (folder / "runtime.yaml").write_text(yaml.safe_dump({"backend": {"port": 0}}))
        self._output = folder / "serve.out"
        command = [sys.executable, "-m", "tinker_backend", "serve", "--config", str(folder / "runtime.yaml")]
        # The threads of the engine are its own business.
        own = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
        environment = {k: v for k, v in os.environ.items() if k not in own}
        start = time.perf_counter()
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        self.url = self._wait_until_ready()
        self.ready_seconds = time.perf_counter() - start

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + _START_SECONDS
        while b"ready on http" not in (text := self._output.read_bytes()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the backend did not start:\n{text.decode()}")
            time.sleep(0.02)
        return next(word for word in text.decode().split() if word.startswith("http://"))

    def _family(self) -> list[int]:
        found, left = [], [self.process.pid]
        while left:
            pid = left.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                left += [int(child) for child in task.read_text().split()]
        return found

    def cpu_seconds(self) -> float:
        """CPU time of backend and runtime so far."""
        ticks = 0
        for pid in self._family():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def peak_megabytes(self) -> float:
        """Sum of the highest resident memory of backend and runtime."""
        total = 0
        for pid in self._family():
            status = Path(f"/proc/{pid}/status").read_text()
            total += int(status.split("VmHWM:")[1].split()[0])
        return total / 1024

    def close(self) -> None:
        """Stops the backend and waits for it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
