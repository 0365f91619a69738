"""One server a ledger: two would carry out the same operations twice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from ..errors import LedgerError

_ADVISORY_KEY = 7_239_113_021
_PATIENCE = 10.0
"""Seconds that PostgreSQL may take to notice that the last server was killed."""


class Exclusive:
    """A claim on a ledger that ends with ``release`` or with the process, however it dies."""

    def __init__(self) -> None:
        self._file = -1
        self._connection: Connection | None = None

    def claim(self, engine: Engine) -> None:
        """Raises LedgerError when another server has the ledger."""
        if engine.dialect.name == "postgresql":
            self._claim_database(engine)
        elif engine.url.database:
            self._claim_file(Path(f"{engine.url.database}.lock"))

    def _claim_file(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._file, 20).decode("ascii", "replace").strip()
            self.release()
            raise LedgerError(
                f"another server (process {owner or 'unknown'}) uses this ledger; end it, or give this server a "
                "ledger and a checkpoint folder of its own"
            ) from None
        os.truncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def _claim_database(self, engine: Engine) -> None:
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        deadline = time.monotonic() + _PATIENCE
        while not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_ADVISORY_KEY))):
            if time.monotonic() > deadline:
                connection.close()
                raise LedgerError("another server uses this database; end it, or give this server one of its own")
            time.sleep(0.2)
        self._connection = connection

    def release(self) -> None:
        """Ends the claim."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                self._connection.invalidate()
                self._connection.close()
            self._connection = None
