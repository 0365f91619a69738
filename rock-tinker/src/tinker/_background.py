"""What a connection does on its own: heartbeats, fresh flags, telemetry, cancellations."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import TYPE_CHECKING

from . import _telemetry
from ._errors import APIStatusError, TinkerError
from ._http import Call
from ._pools import PoolKind
from ._settings import logger
from .types.session import SessionHeartbeatRequest

if TYPE_CHECKING:
    from ._holder import Holder

HEARTBEAT_SECONDS = 10.0
_HEARTBEAT_WARNING_SECONDS = 120.0
_MIN_REFRESH_SECONDS = 10.0
_CANCEL_POLL_SECONDS = 0.2


async def send_heartbeats(reference: weakref.ref[Holder]) -> None:
    """Keep the session alive. A 410 means that it has ended; other failures are waited out."""
    last_success = time.monotonic()
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        holder = reference()
        if holder is None or holder.closed or holder.session_id is None:
            return
        body = SessionHeartbeatRequest(session_id=holder.session_id)
        try:
            call = Call("POST", "session_heartbeat", body, timeout=10, retries=0)
            await holder.send(PoolKind.SESSION, call, retry=False)
            last_success = time.monotonic()
        except APIStatusError as error:
            if error.status_code == 410:
                return
            _warn(last_success, error)
        except TinkerError as error:
            _warn(last_success, error)
        del holder


def _warn(last_success: float, error: TinkerError) -> None:
    silence = time.monotonic() - last_success
    if silence > _HEARTBEAT_WARNING_SECONDS:
        logger.warning("no heartbeat reached the server for %.0f s; the session may be ended: %s", silence, error)


async def refresh_dynamic_flags(reference: weakref.ref[Holder]) -> None:
    """Fetch the dynamic flags again and again; a failure keeps the old ones."""
    while True:
        holder = reference()
        if holder is None:
            return
        pause = max(float(holder.dynamic_flags.refresh_interval_sec), _MIN_REFRESH_SECONDS)
        del holder
        await asyncio.sleep(pause)
        holder = reference()
        if holder is None or holder.closed:
            return
        try:
            await holder.refresh_dynamic_flags()
        except TinkerError as error:
            logger.debug("dynamic config was not refreshed: %s", error)
        del holder


async def flush_telemetry(reference: weakref.ref[Holder]) -> None:
    while True:
        await asyncio.sleep(_telemetry.FLUSH_SECONDS)
        holder = reference()
        if holder is None or holder.closed:
            return
        if holder.telemetry is not None:
            await holder.telemetry.flush()
        del holder


async def send_cancellations(reference: weakref.ref[Holder]) -> None:
    """Tell the server about samples that nobody waits for any more, in batches."""
    while True:
        await asyncio.sleep(_CANCEL_POLL_SECONDS)
        holder = reference()
        if holder is None or holder.closed:
            return
        batch = [holder.cancellations.pop() for _ in range(min(len(holder.cancellations), _batch_size(holder)))]
        calls = [Call("POST", "cancel_future", {"request_id": request_id}, timeout=30) for request_id in batch]
        results = await asyncio.gather(
            *(holder.send(PoolKind.SESSION, call, retry=False) for call in calls), return_exceptions=True
        )
        for error in results:
            if isinstance(error, BaseException):
                logger.debug("a cancellation did not reach the server: %s", error)
        del holder


def _batch_size(holder: Holder) -> int:
    return max(holder.dynamic_flags.sample_cancel_max_batch_size, 1)
