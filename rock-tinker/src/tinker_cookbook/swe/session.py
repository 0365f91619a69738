"""What a recipe works with: a backend, the Tinker client on it, the model's chat format, and rollouts in sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
from tinker_cookbook import tokenizer_utils
from tinker_cookbook.launch import ServerJob
from tinker_cookbook.swe.budget import Deadline
from tinker_cookbook.swe.chat_format import ChatFormat
from tinker_cookbook.swe.errors import SettingError
from tinker_cookbook.swe.policy import Policy
from tinker_cookbook.swe.rollout import AgentJob, Rollout, roll_out
from tinker_cookbook.swe.settings import RunSettings
from tinker_cookbook.swe.tasks import task_name
from tinker_cookbook.swe.tinker_policy import TinkerSampler

log = logging.getLogger(__name__)

JobFactory = Callable[[dict[str, Any]], AgentJob]


@dataclass
class Session:
    """One backend and everything that rollouts on it share.

    `job_factory` makes an AgentJob from a harbor configuration.
    """

    settings: RunSettings
    service: tinker.ServiceClient
    chat: ChatFormat
    job_factory: JobFactory

    @staticmethod
    @contextlib.asynccontextmanager
    async def open(
        settings: RunSettings, jobs_dir: Path, job_factory: JobFactory, *, label: str, base_url: str | None = None
    ) -> AsyncIterator[Session]:
        """Starts a backend (or takes the one at `base_url`), loads the tokenizer, and closes both at the end."""
        if base_url is None:
            ServerJob.check(settings.runtime_yaml)
        # Loading takes seconds (so do the backend's models): both at the same time.
        loading = asyncio.create_task(asyncio.to_thread(load_tokenizer, settings.tokenizer))
        async with contextlib.AsyncExitStack() as stack:
            api_key: str | None = None
            if base_url is None:
                job = await stack.enter_async_context(ServerJob.start(settings.runtime_yaml, jobs_dir, label=label))
                base_url, api_key = job.base_url, job.api_key
            chat = ChatFormat(await loading)
            service = tinker.ServiceClient(base_url=base_url, api_key=api_key)
            try:
                yield Session(settings, service, chat, job_factory)
            finally:
                await _close(service)

    def policy(self, client: tinker.SamplingClient) -> Policy:
        """The policy with a sampling client's weights."""
        sampler = TinkerSampler(client, self.chat.eos_text)
        return Policy(sampler, self.chat, self.settings.budget, self.settings.base_model)

    async def roll_out(self, task: Path | str, policy: Policy, export_to: Path, *, label: str = "") -> Rollout:
        """One rollout of one task in a sandbox of its own; `label` begins its lines in the log."""
        job = self.job_factory(self.settings.harbor_for(task))
        deadline = Deadline(self.settings.job_seconds, "job budget (timeout in harbor.yaml)")
        return await roll_out(
            job, task_name(task), policy, deadline, export_to, temperature=self.settings.temperature, label=label
        )

    async def roll_out_group(
        self, task: Path | str, policy: Policy, export_to: Path, *, size: int, concurrency: int
    ) -> list[Rollout]:
        """`size` rollouts of one task, at most `concurrency` at a time, in their order."""
        places = asyncio.Semaphore(concurrency)
        finished = 0

        async def member(index: int) -> Rollout:
            nonlocal finished
            label = f"rollout {index}: " if concurrency > 1 else ""
            async with places:
                rollout = await self.roll_out(task, policy, export_to / f"sandbox_{index:02d}", label=label)
            finished += 1
            log.info("%sRollout done: %d/%d of %s, %s", label, finished, size, task_name(task), describe(rollout))
            return rollout

        async with asyncio.TaskGroup() as group:
            members = [group.create_task(member(index)) for index in range(size)]
        return [task.result() for task in members]


def describe(rollout: Rollout) -> str:
    """One line: reward or error, turns and time."""
    outcome = f"reward {rollout.reward:g}" if rollout.usable else f"not evaluated ({rollout.error})"
    return f"{outcome}, {len(rollout.trajectory.turns)} turns, {rollout.seconds:.1f} s"


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a model folder or hub id.

    Raises:
        SettingError: transformers is missing, or nothing is found there.
    """
    try:
        return tokenizer_utils.get_tokenizer(source)
    except ImportError as error:
        raise SettingError("transformers is not installed; pip install 'rock-tinker[cookbook]'") from error
    except Exception as error:  # transformers raises many kinds
        raise SettingError(
            f"the tokenizer of {source!r} (pretrain in engine.yaml) cannot be loaded: {error}; give a model folder"
        ) from error


async def _close(service: tinker.ServiceClient) -> None:
    """Ends the session on the server; the backend goes away next, so a failure matters to nobody."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(10):
            await service.close("success")
