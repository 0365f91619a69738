"""The pull runner: takes an agent's model calls out of the sandbox one by one and hands the answers back.

The sandbox never dials out. The runner asks the ModelService for the next call over the ROCK command channel, answers it
with the policy, and goes on until the service says that the agent has ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from tinker_cookbook.swe.budget import Deadline
from tinker_cookbook.swe.errors import RequestRefused, RolloutFailed
from tinker_cookbook.swe.policy import Conversation

log = logging.getLogger(__name__)

# Longest single wait for the next call. Short enough that a Ctrl-C or a dead sandbox shows soon.
_POLL_SECONDS = 20.0
_ATTEMPTS = 4


class ModelRequest(Protocol):
    """One parked model call."""

    @property
    def index(self) -> int: ...
    @property
    def body(self) -> Any: ...


class ModelService(Protocol):
    """The client side of a ModelService in a sandbox."""

    async def next_request(self, timeout: float) -> Any:
        """The next unanswered call, an end-of-session object, or None when nothing came within `timeout` seconds."""
        ...

    async def respond(self, index: int, body: Any, *, status: int = 200) -> None:
        """Answers call `index`."""
        ...


async def pull(service: ModelService, conversation: Conversation, deadline: Deadline) -> int:
    """Serves model calls until the agent's session ends.

    Calls that arrive while another one is still being answered are answered at the same time.

    Returns:
        The number of calls that were served.

    Raises:
        RolloutFailed: the channel or sampling failed for good, or the session ended before the first call.
        DeadlineExceeded: the job's budget ran out.
    """
    served = 0
    async with _Answers(service, conversation, deadline) as answers:
        while True:
            deadline.check("agent")
            answers.raise_first_failure()
            request = await _next(service, deadline)
            if request is None:
                continue
            if not hasattr(request, "body"):
                break
            served += 1
            answers.start(request)
        await answers.settle()
    if served == 0:
        raise RolloutFailed("agent", "the agent ended before its first model call; see its log in the job folder")
    return served


async def _next(service: ModelService, deadline: Deadline) -> Any:
    """The next call; a channel that fails is tried again a few times, since asking twice costs nothing."""
    for attempt in range(_ATTEMPTS):
        try:
            return await service.next_request(deadline.slice(_POLL_SECONDS))
        except Exception as error:
            deadline.check("agent")
            if attempt == _ATTEMPTS - 1:
                raise RolloutFailed("agent", f"the ModelService cannot be reached: {error}") from error
            log.warning("ModelService: %s; trying again", error)
            await asyncio.sleep(deadline.slice(0.5 * 2**attempt))
    raise AssertionError("unreachable")


class _Answers:
    """The answers under way. Leaving the block ends those that are not done."""

    def __init__(self, service: ModelService, conversation: Conversation, deadline: Deadline) -> None:
        self._service = service
        self._conversation = conversation
        self._deadline = deadline
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def __aenter__(self) -> _Answers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def start(self, request: ModelRequest) -> None:
        # A client that gave up on a call waits for no answer any more: sampling for it may stop.
        for index in getattr(request, "abandoned", ()):
            if index in self._tasks:
                self._tasks[index].cancel()
        self._tasks[request.index] = asyncio.create_task(self._answer(request))

    def raise_first_failure(self) -> None:
        for task in self._tasks.values():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        self._tasks = {index: task for index, task in self._tasks.items() if not task.done()}

    async def settle(self) -> None:
        """After the end of a session: an agent that has gone needs no answer, but a failure still counts."""
        await asyncio.sleep(0)
        self.raise_first_failure()

    async def _answer(self, request: ModelRequest) -> None:
        try:
            body = await self._conversation.answer(request.body, self._deadline)
        except RequestRefused as refusal:
            log.warning("call %d refused: %s", request.index, refusal)
            await self._respond(request.index, refusal.body(), refusal.status)
            return
        except RolloutFailed as failure:
            # The agent is told too, so that it ends now and not when its own time-out fires.
            told = RequestRefused(500, str(failure), code="policy_failed")
            await self._respond(request.index, told.body(), told.status)
            raise
        await self._respond(request.index, body, 200)

    async def _respond(self, index: int, body: dict[str, Any], status: int) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                await self._service.respond(index, body, status=status)
                return
            except Exception as error:
                if attempt == _ATTEMPTS - 1 or self._deadline.remaining() <= 0:
                    raise RolloutFailed("agent", f"answer {index} could not be handed over: {error}") from error
                await asyncio.sleep(self._deadline.slice(0.5 * 2**attempt))
