"""How a recipe starts and ends as a program: signals become one cancellation, errors one sentence and an exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from tinker_cookbook.swe.errors import SettingError, SweError
from tinker_cookbook.swe.results import start_logging

log = logging.getLogger(__name__)


def run(recipe: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs a recipe to its end.

    Ctrl-C, SIGTERM and SIGHUP cancel it once, so that sandboxes and the backend are taken down; further ones change
    nothing.

    Returns:
        Its exit code; 1 after a failure, 2 for a wrong setting, 128 + n after signal n.
    """
    start_logging()
    received: list[int] = []

    async def supervised() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(recipe())

        def stop(number: int) -> None:
            if not received:
                log.warning("%s received; closing sandboxes and backend", signal.Signals(number).name)
                task.cancel()
            received.append(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        return await task

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        return 128 + (received[0] if received else signal.SIGINT)
    except SettingError as error:
        log.error("%s", error)
        return 2
    except SweError as error:
        log.error("%s", error)
        return 1
    except Exception:
        log.exception("the recipe failed")
        return 1
