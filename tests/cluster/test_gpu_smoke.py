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
    before = left_behind()
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
    assert left_behind() == before
    print(said)


def test_each_step_that_fails_is_told_apart(tmp_path: Path) -> None:
    """Without a GPU only what comes before the start of the server, which ends with 4 (5 is the client's)."""
    model = tmp_path / "model"
    model.mkdir()
    wrong: list[tuple[dict[str, str], str, int, str]] = [
        ({"PY": "no-such-python"}, "tiny", 2, "no program"),
        ({"GPUS": "all"}, "tiny", 2, "GPUS is 'all'"),
        ({"WIDTH": "0"}, "tiny", 2, "WIDTH is '0'"),
        ({"GPUS": "999"}, "tiny", 2, "GPUS is 999"),
        ({}, str(model), 3, "holds no config.json"),
    ]
    for changes, name, status, words in wrong:
        done = subprocess.run(
            ["bash", str(SCRIPT), name, str(tmp_path / "files")],
            env={**os.environ, "GPUS": "0", "PY": sys.executable, **changes},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status and words in done.stdout + done.stderr, (changes, done.stdout, done.stderr)


def test_a_server_that_cannot_start_ends_with_its_last_lines_and_leaves_nothing(tmp_path: Path) -> None:
    model = tmp_path / "model"
    before = left_behind()
    environment = {**os.environ, "GPUS": "0", "PY": sys.executable, "OMP_NUM_THREADS": "1"}
    script = "import pathlib, sys; from tinker_backend.models.tiny import make_tiny_model as make; "
    script += "make(pathlib.Path(sys.argv[1]), 'llama', hidden_size=128, heads=2, kv_heads=1)"
    subprocess.run([sys.executable, "-c", script, str(model)], check=True, env=environment)
    (model / "model.safetensors").write_bytes(b"no weights")
    done = subprocess.run(
        ["bash", str(SCRIPT), str(model), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 4 and "the server ended before it was ready" in done.stderr, done.stdout + done.stderr
    assert left_behind() == before


def left_behind() -> set[Path]:
    """Folders of runtimes and engines on this machine."""
    kept = [*Path("/tmp").glob("tinker-ray-*"), *Path("/tmp").glob("tinker-vllm-*")]
    return {*kept, *Path("/dev/shm").glob("tinker-weights-*")}
