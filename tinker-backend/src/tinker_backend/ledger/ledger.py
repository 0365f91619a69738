"""One thread that owns the database connection, commits in groups, and never blocks the event loop.

Jobs are plain functions of a ``Connection``. All jobs that wait when the thread is free run in one transaction; when
one of them fails the transaction is rolled back and each runs alone, so that a failure stays with its own job. Jobs
whose outcome somebody awaits are committed at once; those that nobody awaits stay for company a few milliseconds, so
that a training step costs two commits and not four.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import StaticPool

from ..errors import LedgerError
from . import tables
from .exclusive import Exclusive

log = logging.getLogger(__name__)

T = TypeVar("T")
_GROUP = 256
_LINGER = 0.02
"""Seconds that jobs which nobody awaits may stay before they are committed without others."""


class _Job(Generic[T]):
    def __init__(self, work: Callable[[Connection], T], future: asyncio.Future[T] | None) -> None:
        self.work = work
        self.future = future
        self.result: T | None = None
        self.error: Exception | None = None


class Ledger:
    """The durable record. Open it on the event loop that uses it.

    ``url`` is an SQLAlchemy URL of SQLite or PostgreSQL, or ``memory``. With ``fsync`` a commit to SQLite waits until
    the disk has it.
    """

    def __init__(self, url: str, fsync: bool = False) -> None:
        self.url = url
        self._fsync = fsync
        self.in_memory = url == "memory"
        self._engine: Engine | None = None
        self._exclusive = Exclusive()
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = 0
        self.last_error: str | None = None

    @property
    def backlog(self) -> int:
        """Jobs that wait for the thread."""
        return self._jobs.qsize()

    def open(self) -> None:
        """Connects, makes missing tables and starts the thread. Raises LedgerError, also when another server has it."""
        self._engine = _engine(self.url, self._fsync)
        try:
            self._exclusive.claim(self._engine)
            tables.metadata.create_all(self._engine)
            with self._engine.begin() as connection:
                _check_version(connection)
        except (sa.exc.SQLAlchemyError, OSError) as error:
            raise LedgerError(f"the ledger {self._shown_url()} cannot be opened: {_cause(error)}") from error
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Runs a job and waits for its commit. Raises LedgerError when the database cannot take it."""
        assert self._loop is not None, "the ledger is not open"
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(work, future))
        return await future

    def post(self, work: Callable[[Connection], object]) -> None:
        """Queues a job whose outcome nobody waits for; it is repeated while the disk is full."""
        self._jobs.put(_Job(work, None))

    async def close(self) -> None:
        """Writes what is queued and closes."""
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join, 30)
        self._exclusive.release()
        if self._engine is not None:
            self._engine.dispose()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._engine is not None and self._loop is not None
        stop = False
        while not stop:
            group = self._gather()
            stop = None in group
            jobs = [job for job in group if job is not None]
            if jobs:
                self._commit(jobs)
                awaited = [job for job in jobs if job.future is not None]
                if awaited:
                    with contextlib.suppress(RuntimeError):  # the loop has ended
                        self._loop.call_soon_threadsafe(_deliver, awaited)

    def _gather(self) -> list[_Job[Any] | None]:
        """The jobs of the next transaction; None among them ends the thread."""
        group = [self._jobs.get()]
        deadline = time.monotonic() + _LINGER
        awaited = False
        with contextlib.suppress(queue.Empty):
            while len(group) < _GROUP:
                awaited = awaited or group[-1] is None or group[-1].future is not None
                left = deadline - time.monotonic()
                if awaited or left <= 0:
                    group.append(self._jobs.get_nowait())
                else:
                    group.append(self._jobs.get(timeout=left))
        return group

    def _commit(self, jobs: list[_Job[Any]]) -> None:
        assert self._engine is not None
        try:
            with self._engine.begin() as connection:
                for job in jobs:
                    job.result = job.work(connection)
            self.last_error = None
        except Exception:
            for job in jobs:
                self._commit_alone(job)

    def _commit_alone(self, job: _Job[Any]) -> None:
        assert self._engine is not None
        delay = 0.2
        while True:
            try:
                with self._engine.begin() as connection:
                    job.result = job.work(connection)
                self.last_error = None
                return
            except sa.exc.OperationalError as error:
                self.last_error = _cause(error)
                log.error("the ledger %s cannot write: %s", self._shown_url(), self.last_error)
                if job.future is not None or delay > 5:
                    job.error = LedgerError(
                        f"the ledger cannot write: {self.last_error}; free disk space and try again"
                    )
                    return
                time.sleep(delay)
                delay *= 2
            except Exception as error:
                if job.future is None:
                    log.exception("a ledger job failed")
                job.error = error
                return

    def _shown_url(self) -> str:
        return "memory" if self.in_memory else sa.make_url(self.url).render_as_string(hide_password=True)


def _deliver(jobs: list[_Job[Any]]) -> None:
    for job in jobs:
        if job.future is None or job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


def _engine(url: str, fsync: bool = False) -> Engine:
    if url == "memory":
        engine = sa.create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        try:
            parsed = sa.make_url(url)
        except sa.exc.ArgumentError as error:
            raise LedgerError(
                f"ledger.url {url!r} is no SQLAlchemy URL such as sqlite:////var/lib/tinker/ledger.db"
            ) from error
        sqlite = parsed.get_backend_name() == "sqlite"
        if sqlite and parsed.database:
            _make_folder(Path(parsed.database).parent)
        try:
            engine = sa.create_engine(parsed, **({"connect_args": {"check_same_thread": False}} if sqlite else {}))
        except ImportError as error:
            raise LedgerError(f"ledger.url {parsed.drivername!r} needs a database driver: {error}") from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", lambda connection, _record: _tune_sqlite(connection, fsync))
    return engine


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"the folder {folder} of the ledger cannot be made: {error.strerror}") from error


def _tune_sqlite(connection: Any, fsync: bool) -> None:
    cursor = connection.cursor()
    # In WAL mode with synchronous=NORMAL a commit survives the death of the process without an fsync of its own; FULL
    # adds one to every commit, for the death of the machine.
    for pragma in (
        "journal_mode=WAL",
        f"synchronous={'FULL' if fsync else 'NORMAL'}",
        "busy_timeout=10000",
        "temp_store=MEMORY",
        "cache_size=-8192",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _check_version(connection: Connection) -> None:
    found = connection.scalar(sa.select(tables.meta.c.value).where(tables.meta.c.key == "schema"))
    if found is None:
        connection.execute(sa.insert(tables.meta).values(key="schema", value=tables.SCHEMA_VERSION))
    elif found != tables.SCHEMA_VERSION:
        raise LedgerError(
            f"the ledger was written with schema {found}, this server reads {tables.SCHEMA_VERSION}: "
            "use the version that wrote it, or another ledger.url"
        )


def _cause(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error)
