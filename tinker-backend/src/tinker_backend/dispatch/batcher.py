"""Cross-run batches: all forward_backwards of one base model that are ready go to the runtime in one call."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from ..runtime.roles import LossResult, RuntimeFault
from .companions import Companions
from .link import RuntimeLink
from .run import Operation

BATCH_TOKENS = 65536
"""A call takes requests until it holds so many tokens, so that no call keeps the others waiting for minutes."""


@dataclass(eq=False)
class _Waiting:
    base_model: str
    operations: list[Operation]
    tokens: int
    link: RuntimeLink
    answer: asyncio.Future[list[LossResult | RuntimeFault]]


class Batcher:
    """Collects requests while the trainer is busy and sends them together when it is free."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._waiting: deque[_Waiting] = deque()
        self._busy = False
        self._others = 0
        self.calls = 0
        self.requests = 0
        self.largest = 0
        self._companions = Companions()
        self._arrival = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def forward_backward(
        self, base_model: str, operations: list[Operation], link: RuntimeLink
    ) -> list[LossResult | RuntimeFault]:
        """Results in order of the operations, which belong to one run. Raises RuntimeGone, TimeoutError."""
        answer: asyncio.Future[list[LossResult | RuntimeFault]] = asyncio.get_running_loop().create_future()
        tokens = sum(operation.tokens for operation in operations)
        self._waiting.append(_Waiting(base_model, operations, tokens, link, answer))
        self._arrival.set()
        self._pump(idle=True)
        return await answer

    async def other(self, link: RuntimeLink, method: str, **params: Any) -> Any:
        """Any other call to the trainer. Batches wait for it, since the trainer does one thing at a time; the runs
        that it keeps from being ready can then join the next batch."""
        self._others += 1
        try:
            return await link.call(method, self._timeout, **params)
        finally:
            self._others -= 1
            self._pump()

    def _pump(self, idle: bool = False) -> None:
        """Sends what waits when the trainer is free; ``idle``: it was so before."""
        if self._busy or self._others or not self._waiting:
            return
        self._busy = True
        task = asyncio.create_task(self._send(idle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self) -> list[_Waiting]:
        first = self._waiting[0]
        group: list[_Waiting] = []
        left: deque[_Waiting] = deque()
        tokens = 0
        for waiting in self._waiting:
            same = waiting.base_model == first.base_model and waiting.link is first.link
            if same and (not group or tokens + waiting.tokens <= BATCH_TOKENS):
                group.append(waiting)
                tokens += waiting.tokens
            else:
                left.append(waiting)
        self._waiting = left
        return group

    async def _await_companions(self) -> None:
        """Gives the runs that shared the last passes a moment to join this one."""
        deadline = time.monotonic() + (patience := self._companions.patience(self._waiting_runs()))
        if patience <= 0:
            return
        size = len(self._waiting)
        while self._companions.missing(self._waiting_runs()) and (left := deadline - time.monotonic()) > 0:
            self._arrival.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._arrival.wait()
        self._companions.waited(len(self._waiting) > size)

    def _waiting_runs(self) -> set[str]:
        return {operation.promise.target for waiting in self._waiting for operation in waiting.operations}

    async def _send(self, idle: bool) -> None:
        # One turn of the loop lets runs that became ready in the same instant join.
        await asyncio.sleep(0)
        if idle:  # else the others had the time of a whole pass to come
            await self._await_companions()
        group = self._take()
        started = time.monotonic()
        requests = [operation.params["request"] for waiting in group for operation in waiting.operations]
        self.calls += 1
        self.requests += len(requests)
        self.largest = max(self.largest, len(group))
        try:
            results = await group[0].link.call("forward_backward", self._timeout, batch=requests)
            if len(results) != len(requests):
                raise RuntimeFault(f"the runtime answered {len(results)} results to {len(requests)} requests")
        except BaseException as error:
            for waiting in group:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
        else:
            runs = [operation.promise.target for waiting in group for operation in waiting.operations]
            self._companions.passed(runs, time.monotonic() - started)
            for waiting in group:
                mine = results[: len(waiting.operations)]
                results = results[len(waiting.operations) :]
                if not waiting.answer.done():
                    waiting.answer.set_result(mine)
        finally:
            self._busy = False
            self._pump()
