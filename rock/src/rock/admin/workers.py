"""The admin's view of the workers: where a new sandbox goes, and requests to host rocklets."""

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
    """

    url: str
    client: httpx.AsyncClient
    instance: str = ""
    last_seen: float = field(default_factory=time.monotonic)
    failure: str = ""


class Workers:
    """All workers that the configuration names."""

    def __init__(self, urls: list[str], key: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.all = [
            Worker(
                url.rstrip("/"),
                httpx.AsyncClient(
                    base_url=url.rstrip("/"),
                    headers={KEY_HEADER: key},
                    timeout=httpx.Timeout(_ADMIN_SECONDS, connect=_CONNECT_SECONDS),
                    limits=limits,
                    trust_env=False,
                ),
            )
            for url in urls
        ]
        self.key = key

    def of(self, url: str, sandbox_id: str) -> Worker:
        for worker in self.all:
            if worker.url == url:
                return worker
        raise Failure(f"worker {url} is no longer in the configuration", INTERNAL_SERVER_ERROR, sandbox_id)

    def place(self, load: dict[str, int]) -> Worker:
        """The worker with the fewest sandboxes among those that answered last time, else among all.

        Args:
            load: sandboxes by worker URL.
        """
        reachable = [worker for worker in self.all if not worker.failure] or self.all
        return min(reachable, key=lambda worker: load.get(worker.url, 0))

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
