"""SandboxGroup: several equal sandboxes, started together."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from rock.errors import RockError
from rock.sdk.config import SandboxConfig, SandboxGroupConfig
from rock.sdk.sandbox import Sandbox

_LOG = logging.getLogger("rock.sdk")


class SandboxGroup:
    """`config.size` sandboxes; `sandboxes` holds the started ones."""

    def __init__(self, config: SandboxGroupConfig) -> None:
        self.config = config
        self.sandboxes: list[Sandbox] = []

    async def start(self) -> None:
        """Starts all, `start_concurrency` at a time, each with up to `start_retry_times` tries.

        Raises:
            RockError: the first sandbox that could not be started; the others are stopped then.
        """
        gate = asyncio.Semaphore(self.config.start_concurrency)
        fields = self.config.model_dump(exclude={"size", "start_concurrency", "start_retry_times", "sandbox_id"})
        config = SandboxConfig(**fields)

        async def one() -> Sandbox:
            async with gate:
                for attempt in range(1, self.config.start_retry_times + 1):
                    sandbox = Sandbox(config)
                    try:
                        await sandbox.start()
                        self.sandboxes.append(sandbox)
                        return sandbox
                    except RockError as error:
                        await sandbox.transport.close()
                        if attempt == self.config.start_retry_times:
                            raise
                        _LOG.warning("start %d of %d failed: %s", attempt, self.config.start_retry_times, error)
                raise AssertionError

        tasks = [asyncio.create_task(one()) for _ in range(self.config.size)]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()
            raise

    async def close(self) -> None:
        """Stops all."""
        await asyncio.gather(*(sandbox.close() for sandbox in self.sandboxes))
        self.sandboxes.clear()

    async def stop(self) -> None:
        await self.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.shield(self.close())
