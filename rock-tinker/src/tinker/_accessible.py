"""One try to reach the server."""

from __future__ import annotations

from . import types
from ._futures import start
from ._holder import Holder
from ._http import Call, parse
from ._pools import PoolKind


async def _check(holder: Holder) -> None:
    try:
        await holder.connect(patient=False)
        call = Call("GET", "get_server_capabilities", retries=0)
        parse(await holder.send(PoolKind.SESSION, call, retry=False), types.GetServerCapabilitiesResponse)
    finally:
        await holder.close("success", None)


def check_access() -> None:
    """Raises what stands in the way."""
    start(_check(Holder())).result(timeout=120)
