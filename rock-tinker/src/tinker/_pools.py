"""Connection pools by purpose. A pool makes more HTTP clients as its calls need them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum

from ._http import HttpClient, ResetBudget

_CLEARTEXT_LIMIT = 8


class PoolKind(Enum):
    """Value: how many requests may run at once on one HTTP client."""

    SESSION = ("session", 50)
    SAMPLE = ("sample", 50)
    TRAIN = ("train", 1)  # a big upload must not share a connection with another
    REST_SUPPORT_REDIRECT = ("rest", 50)
    RETRIEVE_PROMISE = ("retrieve_promise", 50)
    RETRIEVE_FUTURES = ("retrieve_futures", 50)
    TELEMETRY = ("telemetry", 50)

    def limit(self, base_url: str) -> int:
        """Requests at once on one HTTP client. Without TLS each takes a connection, and httpx looks through all
        connections of a client for every request, so that small clients are faster there."""
        return min(self.value[1], _CLEARTEXT_LIMIT) if base_url.startswith("http://") else self.value[1]


class Pool:
    """Clients of one kind; a call takes the first that has room."""

    def __init__(self, limit: int, make: Callable[[ResetBudget], HttpClient]) -> None:
        self._limit = limit
        self._make = make
        self._budget = ResetBudget()
        self._clients: list[tuple[HttpClient, list[None]]] = []

    @asynccontextmanager
    async def client(self) -> AsyncIterator[HttpClient]:
        client, running = self._take()
        running.append(None)
        try:
            yield client
        finally:
            running.pop()

    def _take(self) -> tuple[HttpClient, list[None]]:
        for entry in self._clients:
            if len(entry[1]) < self._limit:
                return entry
        self._clients.append((self._make(self._budget), []))
        return self._clients[-1]

    async def close(self) -> None:
        clients, self._clients = self._clients, []
        for client, _ in clients:
            await client.close()
