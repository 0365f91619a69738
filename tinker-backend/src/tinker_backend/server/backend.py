"""The server's domain, put together: ledger, supervisor, dispatch, checkpoints. Routes talk to this alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from .. import __version__
from ..checkpoints.downloads import LinkSigner
from ..checkpoints.folders import WeightFolders
from ..checkpoints.store import CheckpointStore
from ..config import RuntimeConfig
from ..dispatch.admission import nearest
from ..dispatch.batcher import Batcher
from ..dispatch.gate import Gate
from ..dispatch.promises import Promise, PromiseBook, insertion, operation_row
from ..dispatch.samplers import SamplerBook
from ..dispatch.sampling import SamplingDispatch
from ..dispatch.services import Services
from ..dispatch.sessions import SessionBook
from ..dispatch.training import TrainingDispatch
from ..errors import BadRequest, LedgerError, RuntimeGone, Unavailable
from ..ledger import Ledger, tables
from ..runtime.roles import ModelCard
from ..supervisor import Supervisor
from .janitor import Janitor
from .principal import Authenticator, Principal, open_authenticator

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Backend:
    """One server."""

    config: RuntimeConfig
    authenticator: Authenticator
    ledger: Ledger
    supervisor: Supervisor
    promises: PromiseBook
    sessions: SessionBook
    store: CheckpointStore
    samplers: SamplerBook
    services: Services
    training: TrainingDispatch
    sampling: SamplingDispatch
    signer: LinkSigner
    poll_seconds: float
    """How long a long poll waits."""
    version: str = __version__
    started_at: float = 0.0

    @classmethod
    def build(cls, config: RuntimeConfig, supervisor: Supervisor | None = None) -> Backend:
        """Puts the parts together; nothing runs yet but what ``supervisor`` has launched. Raises ConfigError."""
        config.check_listen_address()
        ledger = Ledger(config.ledger_url, config.ledger.fsync)
        supervisor = supervisor or Supervisor(config.runtime, config.logs.folder)
        promises = PromiseBook(ledger, config.limits)
        store = CheckpointStore(ledger, WeightFolders(config.checkpoints.folder))
        samplers = SamplerBook(ledger, config.limits)
        batcher = Batcher(config.runtime.operation_timeout_seconds)
        services = Services(config, ledger, supervisor, promises, store, samplers, batcher, Gate())
        return cls(
            config=config,
            authenticator=open_authenticator(config.backend.api_keys_file),
            ledger=ledger,
            supervisor=supervisor,
            promises=promises,
            sessions=SessionBook(ledger),
            store=store,
            samplers=samplers,
            services=services,
            training=TrainingDispatch(services),
            sampling=SamplingDispatch(services),
            signer=LinkSigner(b""),
            poll_seconds=config.limits.long_poll_seconds,
        )

    async def open(self) -> None:
        """Opens the ledger and takes up unfinished work, which then waits for the runtime. Raises LedgerError."""
        self.started_at = time.time()
        try:
            self.store.folders.create()
        except OSError as error:
            raise LedgerError(
                f"checkpoints.folder {self.config.checkpoints.folder} cannot be made: {error.strerror}"
            ) from error
        self.ledger.open()
        self.signer = LinkSigner(bytes.fromhex(await self._secret()))
        runs = await self.training.resume()
        samples = await self.sampling.resume()
        if runs or samples:
            log.info("taking up unfinished work: %d runs, %d samples", runs, samples)
        self._janitor = asyncio.create_task(Janitor(self).run(), name="janitor")

    async def start(self) -> None:
        """Starts the runtime and waits for its models. Raises RuntimeGone."""
        await self.supervisor.start()

    def release_polls(self) -> None:
        """Answers long polls with "try again", those that wait and those that come, so that the server can end."""
        self.poll_seconds = 0.0
        self.promises.release()
        self.sampling.completions.release()

    async def stop(self) -> None:
        """Stops in order; what is unfinished stays in the ledger."""
        if (janitor := getattr(self, "_janitor", None)) is not None:
            janitor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await janitor
        await self.training.stop()
        await self.sampling.stop()
        self.sessions.save_heartbeats()
        await self.supervisor.stop()
        await self.ledger.close()

    async def _secret(self) -> str:
        """The key of download links, made once per ledger."""

        def read(connection: sa.engine.Connection) -> str:
            query = sa.select(tables.meta.c.value).where(tables.meta.c.key == "link_secret")
            found = connection.scalar(query)
            if found is None:
                found = secrets.token_hex(32)
                connection.execute(sa.insert(tables.meta).values(key="link_secret", value=found))
            return str(found)

        return await self.ledger.run(read)

    async def cards(self) -> dict[str, ModelCard]:
        """Base models by name and alias; waits while the runtime starts. Raises Unavailable."""
        if not self.supervisor.cards:
            try:
                await self.supervisor.ready()
            except RuntimeGone as error:
                raise Unavailable(str(error)) from error
        return self.supervisor.cards

    async def card(self, name: str, field: str = "base_model") -> ModelCard:
        """The base model that a client names. Raises BadRequest."""
        cards = await self.cards()
        if (card := cards.get(name)) is None:
            raise BadRequest(f"{field} {name[:200]!r} is not served here; {nearest(name, cards)}")
        return card

    async def ready_promise(
        self, request_id: str, caller: Principal, kind: str, target: str, session_id: str, result: dict[str, Any]
    ) -> Promise:
        """A promise that is kept already, for requests that are answered at once but promised by the protocol."""
        if (known := self.promises.known(request_id)) is not None:
            return known
        promise = Promise(request_id, caller.owner, kind, target, 0)
        row = operation_row(promise, session_id, None)
        try:
            await self.ledger.run(insertion(row))
        except sa.exc.IntegrityError:
            return await self.promises.get(request_id, caller)
        self.promises.add(promise)
        self.promises.settle(promise, result)
        return promise

    async def status(self) -> dict[str, Any]:
        """What the server is doing, for people."""
        supervisor = self.supervisor
        return {
            "version": self.version,
            "uptime_seconds": round(time.time() - self.started_at, 1),
            "ledger": {
                "kind": "memory" if self.ledger.in_memory else sa.make_url(self.ledger.url).get_backend_name(),
                "backlog": self.ledger.backlog,
                "error": self.ledger.last_error,
            },
            "runtime": {
                "state": supervisor.state,
                "pid": supervisor.pid,
                "generation": supervisor.generation,
                "restarts": supervisor.restarts,
                "last_death": supervisor.last_death.reason if supervisor.last_death else None,
                **{key: supervisor.hello.get(key) for key in ("version", "device", "dtype", "threads")},
                "models": [
                    {
                        "name": card.name,
                        "aliases": card.aliases,
                        "context": card.max_context_length,
                        "parameters": card.parameters,
                    }
                    for card in supervisor.models
                ],
            },
            "sessions": self.sessions.active,
            "runs": len(self.training.runs),
            "resident_samplers": self.samplers.resident,
            "pending": {"operations": self.promises.pending, "samples": self.sampling.pending},
            "batches": {"calls": self.services.batcher.calls, "requests": self.services.batcher.requests},
        }
