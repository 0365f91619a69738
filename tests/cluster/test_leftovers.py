"""What a killed engine leaves behind ends and is removed; what belongs to others stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tinker_backend.runtime.ray import engine_folder
from tinker_backend.runtime.ray.leftovers import note_memory, processes_under, remove_noted_memory, start_of
from tinker_backend.runtime.ray.own_folder import OwnFolder, remove_abandoned

MEMORY = Path("/dev/shm")

ENGINE = """
import multiprocessing, sys, time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from tinker_backend.runtime.ray import engine_folder

engine_folder._PARENT = Path(sys.argv[1])
folder = engine_folder.EngineFolder()
with folder.noting():
    lock = multiprocessing.get_context("spawn").Lock()
    memory = SharedMemory(create=True, size=4096)
print(folder.path, flush=True)
time.sleep(600)
"""

TREE = """
import os, subprocess, sys, time

os.environ["TINKER_REPLICA"] = str(os.getpid())
worker = "import tinker_backend.runtime.ray.vllm_worker, os, time; print(os.getpid(), flush=True); time.sleep(600)"
engine = (
    "import os, subprocess, sys, time; print(os.getpid(), flush=True); "
    f"[subprocess.Popen([sys.executable, '-c', {worker!r}]) for _ in range(2)]; time.sleep(600)"
)
subprocess.Popen([sys.executable, "-c", worker])
subprocess.Popen([sys.executable, "-c", engine])
time.sleep(600)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python programs; their process groups are ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def all_end(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(start_of(pid) is not None for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_folder_and_shared_memory_of_a_killed_engine_are_removed_by_the_next(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    others = SharedMemory(create=True, size=4096)
    before = set(os.listdir(MEMORY))
    engine = start(ENGINE, str(tmp_path))
    folder = Path(line_of(engine))
    noted = {line.split(" ", 2)[2] for line in (folder / "shared-memory").read_text().splitlines()}
    assert len(noted) == 2 and noted <= set(os.listdir(MEMORY)) and others.name not in noted
    remove_abandoned(tmp_path, "tinker-vllm")
    assert folder.is_dir(), "it is in use"
    # With it dies what Python starts to remove shared memory, as when Ray ends an actor with its children.
    for pid in reversed(processes_under(engine.pid)):
        os.kill(pid, signal.SIGKILL)
    engine.wait()
    assert noted <= set(os.listdir(MEMORY))
    remove_abandoned(tmp_path, "tinker-vllm")
    left = set(os.listdir(MEMORY))
    others.close()
    others.unlink()
    assert not folder.exists() and not noted & left and before & left == before


def test_memory_that_others_made_under_a_noted_name_stays(tmp_path: Path) -> None:
    mine = SharedMemory(create=True, size=4096)
    note_memory(tmp_path, os.getpid())
    assert mine.name in (tmp_path / "shared-memory").read_text()
    (MEMORY / mine.name).rename(MEMORY / f"{mine.name}-moved")
    (MEMORY / mine.name).write_bytes(b"another's")
    remove_noted_memory(tmp_path)
    found = {name for name in os.listdir(MEMORY) if name.startswith(mine.name)}
    (MEMORY / f"{mine.name}-moved").rename(MEMORY / mine.name)
    mine.close()
    mine.unlink()
    assert found == {mine.name, f"{mine.name}-moved"}


def test_processes_that_write_in_the_folder_of_a_dead_runtime_end_and_readers_do_not(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    dead, living = OwnFolder(tmp_path, "stem"), OwnFolder(tmp_path, "stem")
    opened = "import sys, time; held = open(sys.argv[1], sys.argv[2]); print('open', flush=True); time.sleep(600)"
    for folder in (dead, living):
        (folder.path / "log").touch()
    agent = start(opened, str(dead.path / "log"), "a")
    reader = start(opened, str(dead.path / "log"), "r")
    neighbour = start(opened, str(living.path / "log"), "a")
    assert {line_of(process) for process in (agent, reader, neighbour)} == {"open"}
    os.close(dead._lock)
    dead._lock = -1
    remove_abandoned(tmp_path, "stem")
    assert agent.wait(10) == -signal.SIGKILL and not dead.path.exists()
    assert reader.poll() is None and neighbour.poll() is None and living.path.is_dir()
    living.remove()


def test_engine_and_workers_end_with_the_replica(start: Callable[..., subprocess.Popen[str]]) -> None:
    """Stand-ins: a worker that is the replica's child, and two that are children of the engine's process."""
    pytest.importorskip("torch")
    replica = start(TREE)
    pids = [int(line_of(replica)) for _ in range(4)]
    assert sorted(processes_under(replica.pid)) == sorted([replica.pid, *pids])
    time.sleep(1.5)
    assert all(start_of(pid) is not None for pid in pids)
    os.kill(replica.pid, signal.SIGKILL)
    replica.wait()
    assert all_end(pids, 10), "processes of a killed replica live on"


def test_a_worker_ends_that_loads_after_its_replica_died(start: Callable[..., subprocess.Popen[str]]) -> None:
    pytest.importorskip("torch")
    gone = start("pass")
    gone.wait()
    program = "import os, sys, time; os.environ['TINKER_REPLICA'] = sys.argv[1]; "
    worker = start(program + "import tinker_backend.runtime.ray.vllm_worker; time.sleep(600)", str(gone.pid))
    assert worker.wait(60) == 1


def test_sockets_of_an_engine_have_paths_that_the_system_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "VLLM_RPC_BASE_PATH", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = engine_folder.EngineFolder()
    try:
        assert os.environ["TMPDIR"] == os.environ["VLLM_RPC_BASE_PATH"] == str(folder.path)
        longest = max(
            folder.path / "01234567-0123-0123-0123-012345678901",
            folder.path / "pymp-01234567" / "listener-01234567",
            key=lambda path: len(str(path)),
        )
        assert len(str(longest)) <= 107
    finally:
        folder.remove()
    assert not folder.path.exists()
