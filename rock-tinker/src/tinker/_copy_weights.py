"""Copies of checkpoints."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from ._http import Call
from ._pools import PoolKind
from .types.save_weights import CopyWeightsRequest, CopyWeightsResponse

if TYPE_CHECKING:
    from ._holder import Holder


def copy_request(path: str, project_id: str | None, ttl_seconds: int | None) -> CopyWeightsRequest:
    """Raises ValueError without a project."""
    if not project_id:
        raise ValueError(
            "the copy needs a project: pass destination_project_id, or name one in the environment as TINKER_PROJECT_ID"
        )
    return CopyWeightsRequest(source_path=path, destination_project_id=project_id, ttl_seconds=ttl_seconds)


async def copy_weights(holder: Holder, request: CopyWeightsRequest, weights_access_token: str | None) -> str:
    """The path of the copy. One idempotency key for all retries, so that a lost answer makes no second copy."""
    headers = {"X-Tinker-Weights-Access-Token": weights_access_token} if weights_access_token else {}
    call = Call("POST", "copy_weights", request, headers=headers, idempotency_key=str(uuid.uuid4()))
    return (await holder.fetch(PoolKind.TRAIN, call, CopyWeightsResponse)).tinker_path
