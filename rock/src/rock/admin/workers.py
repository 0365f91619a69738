"""The admin's view of the workers: requests to host rocklets, and what they say about themselves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from rock.admin.envelope import BAD_REQUEST, COMMAND_ERROR, INTERNAL_SERVER_ERROR, Failure
from rock.rocklet.host import KEY_HEADER

_CONNECT_SECONDS = 5.0
_ADMIN_SECONDS = 60.0


@dataclass
class Worker:
    """One worker machine.

    Args:
        url: address of its host rocklet.
        capacity: what all its sandboxes together may have, as it says itself: sandboxes, cpus, memory (bytes).
    """

    url: str
    client: httpx.AsyncClient
    instance: str = ""
    last_seen: float = field(default_factory=time.monotonic)
    failure: str = ""
    capacity: dict[str, float] = field(default_factory=dict)


class Workers:
    """The workers that the configuration names, and those of a cluster's nodes."""

    def __init__(self, urls: list[str], key: str) -> None:
        self.key = key
        self.all: list[Worker] = []
        for url in urls:
            self.adopt(url.rstrip("/"))

    def adopt(self, url: str) -> Worker:
        """The worker at `url`, known from now on."""
        for worker in self.all:
            if worker.url == url:
                return worker
        client = httpx.AsyncClient(
            base_url=url,
            headers={KEY_HEADER: self.key},
            timeout=httpx.Timeout(_ADMIN_SECONDS, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )
        self.all.append(Worker(url, client))
        return self.all[-1]

    def of(self, url: str, sandbox_id: str) -> Worker:
        for worker in self.all:
            if worker.url == url:
                return worker
        raise Failure(f"worker {url} is no longer in the configuration", INTERNAL_SERVER_ERROR, sandbox_id)

    async def listing(self, worker: Worker) -> dict[str, Any] | None:
        """What the worker runs; None (and `worker.failure`) when it does not answer."""
        try:
            answer = await worker.client.get("/sandboxes", timeout=_CONNECT_SECONDS)
            answer.raise_for_status()
            listing = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            worker.failure = f"worker {worker.url} does not answer: {error or type(error).__name__}"
            return None
        worker.failure, worker.last_seen, worker.instance = "", time.monotonic(), listing["instance"]
        worker.capacity = listing.get("capacity") or {}
        return listing

    async def call(
        self, worker: Worker, method: str, path: str, sandbox_id: str, timeout: float = _ADMIN_SECONDS, **options: Any
    ) -> dict[str, Any]:
        """One request to a host rocklet about a sandbox.

        Raises:
            Failure: the worker does not answer, or refused; with the reason.
            Ended: the sandbox does not run there.
        """
        try:
            answer = await worker.client.request(
                method, path, timeout=httpx.Timeout(timeout, connect=_CONNECT_SECONDS), **options
            )
        except httpx.TimeoutException as error:
            raise Failure(
                f"worker {worker.url} gave no answer within {timeout:g} s ({method} {path})",
                INTERNAL_SERVER_ERROR,
                sandbox_id,
            ) from error
        except httpx.HTTPError as error:
            worker.failure = f"worker {worker.url} does not answer: {error or type(error).__name__}"
            raise Failure(worker.failure, INTERNAL_SERVER_ERROR, sandbox_id, kind="worker") from error
        return parse_answer(answer, sandbox_id)

    def rocklet_path(self, sandbox_id: str, path: str) -> str:
        return f"/sandboxes/{quote(sandbox_id)}/rocklet/{path.lstrip('/')}"

    async def close(self) -> None:
        for worker in self.all:
            await worker.client.aclose()


class Ended(Failure):
    """The worker says that the sandbox does not run."""


def parse_answer(answer: httpx.Response, sandbox_id: str) -> dict[str, Any]:
    """JSON of a good answer; every other one as a Failure with its reason."""
    try:
        body = answer.json()
    except ValueError:
        body = {}
    if answer.status_code == 200:
        return body
    problem = body.get("rockletexception", {}) if isinstance(body, dict) else {}
    reason = problem.get("message") or (body.get("reason") if isinstance(body, dict) else "")
    reason = reason or f"worker answered status {answer.status_code}: {answer.text[:500]}"
    if answer.status_code == 410:
        raise Ended(reason, INTERNAL_SERVER_ERROR, sandbox_id, kind="gone")
    extra = problem.get("extra_info") or {}
    code = BAD_REQUEST if answer.status_code == 422 else COMMAND_ERROR if problem else INTERNAL_SERVER_ERROR
    raise Failure(reason, code, sandbox_id, extra, kind="timeout" if answer.status_code == 504 else "")
