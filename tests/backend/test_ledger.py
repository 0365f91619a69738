"""The ledger: groups, order, what survives, and which databases it takes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tinker_backend.errors import LedgerError
from tinker_backend.ledger import Ledger, tables
from tinker_backend.socket_folder import SocketFolder


def note(key: str, value: str = "") -> Callable[[sa.engine.Connection], object]:
    """A job that stores a row."""
    return lambda connection: connection.execute(sa.insert(tables.meta).values(key=key, value=value))


def stored(path: Path) -> list[str]:
    """The keys that another connection sees, that is the committed ones."""
    with sqlite3.connect(path) as connection:
        return [key for (key,) in connection.execute("select key from meta where key != 'schema' order by rowid")]


@pytest.fixture
async def ledger(tmp_path: Path) -> Any:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.open()
    yield ledger
    await ledger.close()


async def test_what_is_awaited_is_committed_with_all_that_came_before_it(ledger: Ledger, tmp_path: Path) -> None:
    for number in range(5):
        ledger.post(note(f"before-{number}"))
    await ledger.run(note("awaited"))
    assert stored(tmp_path / "ledger.db") == [*(f"before-{number}" for number in range(5)), "awaited"]


async def test_what_nobody_awaits_is_committed_soon(ledger: Ledger, tmp_path: Path) -> None:
    ledger.post(note("alone"))
    deadline = time.monotonic() + 2
    while stored(tmp_path / "ledger.db") != ["alone"]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_job_that_fails_harms_none_of_its_group(ledger: Ledger, tmp_path: Path) -> None:
    ledger.post(note("first"))
    twice = asyncio.ensure_future(ledger.run(note("first")))
    last = asyncio.ensure_future(ledger.run(note("last")))
    with pytest.raises(sa.exc.IntegrityError):
        await twice
    await last
    assert stored(tmp_path / "ledger.db") == ["first", "last"]


async def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.open()
    ledger.post(note("late"))
    await ledger.close()
    assert stored(tmp_path / "ledger.db") == ["late"]


@pytest.mark.parametrize(("fsync", "level"), [(False, 1), (True, 2)])
async def test_fsync_makes_every_commit_wait_for_the_disk(tmp_path: Path, fsync: bool, level: int) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", fsync)
    ledger.open()
    assert await ledger.run(lambda connection: connection.scalar(sa.text("PRAGMA synchronous"))) == level
    assert await ledger.run(lambda connection: connection.scalar(sa.text("PRAGMA journal_mode"))) == "wal"
    await ledger.close()


def test_an_awaited_job_survives_the_death_of_the_process(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from tests_ledger import note
from tinker_backend.ledger import Ledger
async def main():
    ledger = Ledger("sqlite:///{tmp_path / "ledger.db"}")
    ledger.open()
    for number in range(20):
        await ledger.run(note(f"accepted-{{number}}"))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    (tmp_path / "tests_ledger.py").write_text(Path(__file__).read_text())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert stored(tmp_path / "ledger.db") == [f"accepted-{number}" for number in range(20)]


async def test_a_ledger_of_another_schema_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.open()
    await ledger.run(lambda connection: connection.execute(sa.update(tables.meta).values(value="0")))
    await ledger.close()
    with pytest.raises(LedgerError, match="schema 0"):
        Ledger(f"sqlite:///{tmp_path / 'ledger.db'}").open()


def test_a_second_server_over_the_same_ledger_does_not_start(
    make_backend: Callable[..., Any], start_backend: Any, new_wire: Any
) -> None:
    backend = make_backend()
    with pytest.raises(RuntimeError, match=f"process {backend.process.pid}"):
        start_backend(backend.folder, {}, {})
    assert new_wire(backend.url).http.get("healthz").status_code == 200
    backend.kill()
    backend.start()  # a killed server holds nothing


@pytest.fixture
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server on a socket of its own; skips where there is none to start."""
    pytest.importorskip("psycopg")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs or shutil.which("setpriv") is None:
        pytest.skip("no PostgreSQL server is installed")
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"tinker-test-pg-{os.getpid()}"
    folder.mkdir(mode=0o755)
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    if user:
        shutil.chown(folder, "postgres", "postgres")
    control = [*user, str(programs[-1] / "pg_ctl"), "-D", str(folder / "data")]
    try:
        initdb = [*user, str(programs[-1] / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", "tinker"]
        subprocess.run(initdb, check=True, capture_output=True, timeout=120, cwd="/")
        options = f"-k {folder} -c listen_addresses=''"
        command = [*control, "-o", options, "-l", str(folder / "log"), "-w", "start"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60, cwd="/")
        yield f"postgresql+psycopg://tinker@/postgres?host={folder}"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], capture_output=True, timeout=60, cwd="/")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_server_over_postgresql_goes_on_after_kills(
    make_backend: Callable[..., Any], new_wire: Any, postgres_url: str
) -> None:
    backend = make_backend({"delay_seconds": 0.05}, ledger={"url": postgres_url})
    wire = new_wire(backend.url)
    model = wire.model()
    promises = [wire.optim_step(model, seq_id) for seq_id in range(1, 9)]
    assert wire.optim_step(model, 8) == promises[-1]
    backend.kill()
    backend.start()
    assert [wire.result(promise)["metrics"]["steps"] for promise in promises] == list(range(1, 9))
    with pytest.raises(RuntimeError, match="another server uses this database"):
        make_backend(name="second", ledger={"url": postgres_url})
    saved = wire.result(wire.post("save_weights", model_id=model, seq_id=9, path="end"))
    assert saved["path"].endswith("/weights/end")
    assert wire.http.get("status").json()["ledger"]["kind"] == "postgresql"


def test_a_killed_server_leaves_no_socket_folder_for_ever(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from tinker_backend.socket_folder import SocketFolder\n"
        "SocketFolder(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    alive = SocketFolder(tmp_path)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60)
    assert len(list(tmp_path.iterdir())) == 2
    new = SocketFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {alive.path, new.path}
    assert new.path.stat().st_mode & 0o777 == 0o700
    alive.close()
    new.close()
    assert not list(tmp_path.iterdir())
