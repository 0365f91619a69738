"""Sessions: one client process each, kept alive by heartbeats, ended by finish."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ..errors import Expired, Forbidden, NotFound
from ..ledger import Ledger, tables
from ..server.principal import Principal
from ..wire.requests import CreateSessionBody, FinishBody
from .promises import from_json, to_json

_RETRY_KEYS = 4096


@dataclass(eq=False)
class Session:
    """A client's session. ``status``: active or client_finished."""

    session_id: str
    owner: str
    project_id: str | None
    display_name: str | None
    tags: list[str]
    user_metadata: dict[str, Any] | None
    sdk_version: str
    created_at: float
    heartbeat_at: float
    status: str = "active"
    finish: dict[str, Any] | None = None
    unsaved_heartbeat: bool = False


def session_from_row(row: Any) -> Session:
    """The session of a row."""
    return Session(
        row.session_id,
        row.owner,
        row.project_id,
        row.display_name,
        from_json(row.tags),
        from_json(row.user_metadata),
        row.sdk_version,
        row.created_at,
        row.heartbeat_at,
        row.status,
        from_json(row.finish),
    )


class SessionBook:
    """All sessions; those in use are in memory, the others in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sessions: dict[str, Session] = {}
        self._by_retry_key: OrderedDict[tuple[str, str], Session] = OrderedDict()

    @property
    def active(self) -> int:
        """Sessions with a heartbeat in the last two minutes."""
        horizon = time.time() - 120
        return sum(s.status == "active" and s.heartbeat_at > horizon for s in self._sessions.values())

    def last_sign(self, session_id: str) -> float:
        """When the session last showed life since this server started; 0 when it has not."""
        session = self._sessions.get(session_id)
        return 0.0 if session is None else session.heartbeat_at

    async def create(self, body: CreateSessionBody, principal: Principal, retry_key: str | None) -> Session:
        """A new session; the same one when the same HTTP request is repeated."""
        key = (principal.owner, retry_key or secrets.token_hex(8))
        if (known := self._by_retry_key.get(key)) is not None:
            return known
        now = round(time.time(), 6)  # what a cursor in ISO 8601 can carry
        session = Session(
            f"sess-{secrets.token_hex(10)}",
            principal.owner,
            body.project_id,
            body.display_name,
            sorted(set(body.tags)),
            body.user_metadata,
            body.sdk_version[:64],
            now,
            now,
        )
        self._by_retry_key[key] = session
        while len(self._by_retry_key) > _RETRY_KEYS:
            self._by_retry_key.popitem(last=False)
        statement = sa.insert(tables.sessions).values(
            session_id=session.session_id,
            owner=session.owner,
            project_id=session.project_id,
            display_name=session.display_name,
            tags=to_json(session.tags),
            user_metadata=to_json(session.user_metadata),
            sdk_version=session.sdk_version,
            created_at=now,
            heartbeat_at=now,
            status=session.status,
        )
        try:
            await self._ledger.run(lambda connection: connection.execute(statement))
        except BaseException:
            self._by_retry_key.pop(key, None)
            raise
        self._sessions[session.session_id] = session
        return session

    async def get(self, session_id: str, principal: Principal) -> Session:
        """The caller's session. Raises NotFound, Forbidden."""
        session = self._sessions.get(session_id)
        if session is None:
            query = sa.select(tables.sessions).where(tables.sessions.c.session_id == session_id)
            row = await self._ledger.run(lambda connection: connection.execute(query).one_or_none())
            if row is None:
                raise NotFound(f"session_id {session_id!r} is not known to this server")
            session = self._sessions.setdefault(session_id, session_from_row(row))
        if session.owner != principal.owner:
            raise Forbidden(f"session {session_id!r} belongs to another API key")
        return session

    async def working(self, session_id: str, principal: Principal) -> Session:
        """A session that still takes work; its use counts as a sign of life."""
        session = await self.get(session_id, principal)
        if session.status == "client_finished":
            # The client said goodbye and then came back: it is there again.
            session.status, session.finish = "active", None
        self._beat(session)
        return session

    async def heartbeat(self, session_id: str, principal: Principal) -> None:
        """Raises Expired once the session is finished, which ends the client's heartbeat loop."""
        session = await self.get(session_id, principal)
        if session.status != "active":
            raise Expired(f"session {session_id!r} is finished")
        self._beat(session)

    def _beat(self, session: Session) -> None:
        session.heartbeat_at = time.time()
        session.unsaved_heartbeat = True

    async def finish(self, session_id: str, body: FinishBody, principal: Principal) -> Session:
        """Ends a session in the client's words."""
        session = await self.get(session_id, principal)
        session.status = "client_finished"
        session.finish = {"reason": body.reason.type, "detail": body.detail}
        await self._update(session, status=session.status, finish=to_json(session.finish))
        return session

    async def assign_project(self, session_id: str, project_id: str, principal: Principal) -> None:
        """Puts a session into a project."""
        session = await self.get(session_id, principal)
        session.project_id = project_id
        await self._update(session, project_id=project_id)

    async def _update(self, session: Session, **values: Any) -> None:
        statement = (
            sa.update(tables.sessions).where(tables.sessions.c.session_id == session.session_id).values(**values)
        )
        await self._ledger.run(lambda connection: connection.execute(statement))

    def save_heartbeats(self) -> None:
        """Writes the heartbeats since the last call; long idle sessions leave memory."""
        beating = [session for session in self._sessions.values() if session.unsaved_heartbeat]
        rows = [{"key": s.session_id, "beat": s.heartbeat_at, "state": s.status} for s in beating]
        for session in beating:
            session.unsaved_heartbeat = False
        if rows:
            statement = (
                sa.update(tables.sessions)
                .where(tables.sessions.c.session_id == sa.bindparam("key"))
                .values(heartbeat_at=sa.bindparam("beat"), status=sa.bindparam("state"))
            )
            self._ledger.post(lambda connection: connection.execute(statement, rows))
        horizon = time.time() - 6 * 3600
        for session_id in [s.session_id for s in self._sessions.values() if s.heartbeat_at < horizon]:
            del self._sessions[session_id]
