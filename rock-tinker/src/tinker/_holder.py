"""The connection to one server: credentials, flags, session and all limits that clients share."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from . import _background, _settings
from ._auth import CommandCredential, Credential, ExchangedToken, resolve_credential
from ._budgets import Backpressure, ByteBudget
from ._errors import NotFoundError, TinkerError
from ._headers import base_headers, sdk_method
from ._http import Call, HttpClient, parse
from ._loop import LOOP
from ._pace import HTTP_RETRIES
from ._pools import Pool, PoolKind
from ._retry import execute_with_retries
from ._settings import logger
from ._telemetry import Telemetry
from ._version import __version__
from .types.client_config import ClientConfigRequest, ClientConfigResponse, ClientDynamicConfigResponse
from .types.session import AuthTokenResponse, CreateSessionRequest, CreateSessionResponse

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Holder:
    """Connects when first used. All coroutines run on the loop of the SDK.

    Args:
        base_url: Server address, resolved.
        api_key: Key given by the caller; None looks in the environment.
        user_metadata, project_id, display_name: Of the session that is created when one is needed.
        headers: Override the headers of every request.
        session_id: An existing session to join instead (a shadow of a client in another process).
        flags: Flags of the server if known already; then they are not fetched.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        display_name: str | None = None,
        headers: Mapping[str, str] | None = None,
        session_id: str | None = None,
        flags: ClientConfigResponse | None = None,
    ) -> None:
        _settings.configure_logging()
        self.base_url = _settings.resolve_base_url(base_url)
        self.api_key = api_key
        self.user_metadata = user_metadata
        self.project_id = project_id or _settings.project_id()
        self.display_name = display_name
        self.header_overrides = dict(headers or {})
        self._raw_credential = resolve_credential(api_key, self.base_url)
        self.credential: Credential = self._raw_credential
        self._headers = base_headers(self.header_overrides)
        self._pools: dict[PoolKind, Pool] = {}
        weakref.finalize(self, _close_pools, self._pools).atexit = False
        self._set_up_pool = self._new_set_up_pool()
        self._known_flags = flags
        self._connected = False
        self._session_id = session_id
        self._joined = session_id is not None
        self._session_ready = False
        self.closed = False
        self.flags = flags or ClientConfigResponse()
        self.dynamic_flags = ClientDynamicConfigResponse()
        self._model_seq = itertools.count()
        self._sampling_session_seq = itertools.count()
        self._custom_loss_seq = itertools.count()
        self.cancellations: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._connecting: asyncio.Lock | None = None
        self.telemetry: Telemetry | None = None

    # -- counters of the session ---------------------------------------------------------------------------------
    def next_model_seq_id(self) -> int:
        return next(self._model_seq)

    def next_sampling_session_seq_id(self) -> int:
        return next(self._sampling_session_seq)

    def next_custom_loss_seq_id(self) -> int:
        return next(self._custom_loss_seq)

    # -- connecting ----------------------------------------------------------------------------------------------
    async def connect(self, *, patient: bool = True) -> None:
        """Fetch flags and, if the server wants it, exchange the credential. Does nothing the second time.

        ``patient=False`` makes one try only.
        """
        if self._connected:
            return
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if not self._connected:
                with sdk_method(None):
                    await self._connect(patient)

    async def _connect(self, patient: bool) -> None:
        config = ClientConfigRequest(sdk_version=__version__)
        if self._known_flags is None:
            call = Call("POST", "client/config", config, retries=HTTP_RETRIES if patient else 0)
            self.flags = await self._set_up(call, ClientConfigResponse, retry=patient)
        if self.flags.credential_default_source == "credential_cmd":
            self._raw_credential = resolve_credential(self.api_key, self.base_url, enforce_command=True)
            self._set_up_pool = self._new_set_up_pool()
        self.credential = self._raw_credential
        if self.flags.pjwt_auth_enabled:
            exchanged = ExchangedToken(self._exchange_token)
            await exchanged.token()
            exchanged.start_refresh()
            self.credential = exchanged
        elif isinstance(self._raw_credential, CommandCredential):
            raise TinkerError(
                "TINKER_CREDENTIAL_CMD needs a server that exchanges credentials for tokens, and this one does not; "
                "unset it and set TINKER_API_KEY"
            )
        self._create_limits()
        self.telemetry = Telemetry(lambda call: self._send_once(PoolKind.TELEMETRY, call))
        try:
            await self.refresh_dynamic_flags(retry=patient)
        except NotFoundError:
            logger.debug("the server has no dynamic config")
        self._spawn(_background.refresh_dynamic_flags, _background.flush_telemetry, _background.send_cancellations)
        self._connected = True

    def _new_set_up_pool(self) -> Pool:
        """For calls that carry the credential itself and not the token that it is exchanged for."""
        base_url, headers, credential = self.base_url, self._headers, self._raw_credential
        return Pool(1, lambda budget: HttpClient(base_url, headers, credential, budget))

    def _create_limits(self) -> None:
        flags = self.flags
        self.sample_bytes = ByteBudget(flags.sample_dispatch_bytes_semaphore_size)
        self.response_bytes = ByteBudget(flags.inflight_response_bytes_semaphore_size)
        self.training_bytes = ByteBudget(flags.fwdbwd_dispatch_bytes_semaphore_size)
        self.sample_dispatch = asyncio.Semaphore(400)
        self.backpressure = Backpressure()

    async def _set_up(self, call: Call, model: type[M], *, retry: bool) -> M:
        async def attempt() -> M:
            async with self._set_up_pool.client() as client:
                return await client.fetch(call, model)

        return await execute_with_retries(attempt, billing_pause=0) if retry else await attempt()

    async def _exchange_token(self) -> str:
        async with self._set_up_pool.client() as client:
            return (await client.fetch(Call("POST", "auth/token", {}), AuthTokenResponse)).jwt

    async def refresh_dynamic_flags(self, *, retry: bool = False) -> None:
        body = ClientConfigRequest(sdk_version=__version__)
        call = Call("POST", "client/dynamic_config", body, timeout=10, retries=0)
        with sdk_method(None):
            if retry:
                response = await self._retried(lambda: self._send_once(PoolKind.SESSION, call))
            else:
                response = await self._send_once(PoolKind.SESSION, call)
        self.dynamic_flags = parse(response, ClientDynamicConfigResponse)

    # -- session -------------------------------------------------------------------------------------------------
    @property
    def session_id(self) -> str | None:
        """The session, if there is one already."""
        return self._session_id

    async def session(self) -> str:
        """The session id; creates the session when first asked."""
        await self.connect()
        assert self._connecting is not None
        async with self._connecting:
            if self._session_id is None:
                with sdk_method(None):
                    self._session_id = await self._create_session()
            if not self._session_ready:
                self._session_ready = True
                if self.telemetry is not None and not self._joined:
                    self.telemetry.begin_session(self._session_id)
                self._spawn(_background.send_heartbeats)
        return self._session_id

    async def _create_session(self) -> str:
        request = CreateSessionRequest(
            tags=_settings.tags(),
            user_metadata=self.user_metadata or {},
            sdk_version=__version__,
            project_id=self.project_id,
            display_name=self.display_name,
        )
        async with self._pool(PoolKind.SESSION).client() as client:
            session = await client.fetch(Call("POST", "create_session", request), CreateSessionResponse)
        for log, message in (
            (logger.info, session.info_message),
            (logger.warning, session.warning_message),
            (logger.error, session.error_message),
        ):
            if message:
                log(message)
        return session.session_id

    async def close(self, status: str, detail: str | None) -> None:
        """Finish the session, if one was created, and stop the background work."""
        if self.closed:
            return
        self.closed = True
        if self._session_id is not None and not self._joined:
            body = {"reason": {"type": status}, "detail": detail}
            await self.send(PoolKind.SESSION, Call("POST", f"sessions/{self._session_id}/finish", body))
        if self.telemetry is not None:
            await self.telemetry.flush()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        if isinstance(self.credential, ExchangedToken):
            self.credential.close()

    # -- sending -------------------------------------------------------------------------------------------------
    async def send(self, kind: PoolKind, call: Call, *, retry: bool = True) -> Any:
        """The answer to a call; with ``retry`` behind the outer retry and the billing pause."""
        await self.connect()
        if retry:
            return await self._retried(lambda: self._send_once(kind, call))
        return await self._send_once(kind, call)

    async def fetch(self, kind: PoolKind, call: Call, model: type[M], *, retry: bool = True) -> M:
        return parse(await self.send(kind, call, retry=retry), model)

    async def _send_once(self, kind: PoolKind, call: Call) -> Any:
        async with self._pool(kind).client() as client:
            return await client.send(call)

    async def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        return await execute_with_retries(work, billing_pause=self.flags.billing_exception_max_pause_duration_sec)

    def _pool(self, kind: PoolKind) -> Pool:
        pool = self._pools.get(kind)
        if pool is None:
            base_url, headers, credential = self.base_url, self._headers, self.credential  # a pool outlives its holder
            pool = Pool(kind.limit(base_url), lambda budget: HttpClient(base_url, headers, credential, budget))
            self._pools[kind] = pool
        return pool

    # -- background ----------------------------------------------------------------------------------------------
    def _spawn(self, *jobs: Callable[[weakref.ref[Holder]], Coroutine[Any, Any, None]]) -> None:
        """Background jobs hold the holder weakly: they end when no client is left."""
        reference = weakref.ref(self)
        with sdk_method(None):
            self._tasks.extend(asyncio.create_task(job(reference)) for job in jobs)

    async def observed(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work of a public method; an exception that leaves it is an event of telemetry."""
        try:
            return await work
        except Exception as error:
            if self.telemetry is not None:
                self.telemetry.log_exception(error)
                self._tasks.append(asyncio.create_task(self.telemetry.flush()))
                self._tasks = [task for task in self._tasks if not task.done()]
            raise


def _close_pools(pools: dict[PoolKind, Pool]) -> None:
    """Close the connections of a holder that nobody uses any more."""

    async def close() -> None:
        for pool in pools.values():
            await pool.close()

    LOOP.start(close())


_shared: dict[tuple[str, str | None], Holder] = {}


def shared_holder(base_url: str | None, api_key: str | None) -> Holder:
    """The session-less holder of this process for a server and key."""
    key = (_settings.resolve_base_url(base_url), api_key)
    if key not in _shared:
        _shared[key] = Holder(base_url, api_key)
    return _shared[key]
