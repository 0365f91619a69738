"""``examples/gpu_smoke.sh`` without a GPU: the same configuration, server and client on the CPU, with a tiny model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).parents[2] / "examples" / "gpu_smoke.sh"


def test_the_gpu_smoke_test_passes_on_a_cpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER_", "RAY_"))}
    process = subprocess.Popen(
        ["bash", str(SCRIPT), "tiny", str(tmp_path)],
        env={**environment, "GPUS": "0", "PY": sys.executable, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=500)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
    log = tmp_path / "logs" / "runtime.log"
    assert process.returncode == 0, said + (log.read_text(errors="replace")[-6000:] if log.exists() else "")
    table = [line.strip("|").split("|") for line in said.splitlines() if line.startswith("| ")]
    assert [row[0].strip() for row in table] == ["weights", "LoRA 32", "all"]
    for row in table[1:]:
        rates, gaps = [float(row[cell]) for cell in (1, 2, 3)], [float(row[cell]) for cell in (4, 5)]
        assert min(rates) > 0 and max(gaps) < 1e-4, said
    print(said)
