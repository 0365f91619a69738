"""Checkpoints, training runs and tinker:// paths."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from .base import Response

CheckpointType = Literal["training", "sampler", "external"]
_SEGMENTS: dict[str, CheckpointType] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}


class Checkpoint(Response):
    """``checkpoint_id`` is the last two segments of ``tinker_path``, e.g. ``weights/step-10``."""

    checkpoint_id: str
    checkpoint_type: CheckpointType
    time: datetime
    tinker_path: str
    size_bytes: int | None = None
    public: bool = False
    user_metadata: dict[str, str] | None = None
    expires_at: datetime | None = None


class ParsedCheckpointTinkerPath(Response):
    """``tinker://<training_run_id>/<weights|sampler_weights|external_weights>/<name>`` in parts."""

    tinker_path: str
    training_run_id: str
    checkpoint_type: CheckpointType
    checkpoint_id: str

    @classmethod
    def from_tinker_path(cls, tinker_path: str) -> ParsedCheckpointTinkerPath:
        """Raises ValueError for anything but exactly three segments with a known middle one."""
        parts = tinker_path.removeprefix("tinker://").split("/")
        if not tinker_path.startswith("tinker://") or len(parts) != 3 or not all(parts) or parts[1] not in _SEGMENTS:
            raise ValueError(f"Invalid tinker path: {tinker_path}")
        run_id, kind, name = parts
        return cls(
            tinker_path=tinker_path,
            training_run_id=run_id,
            checkpoint_type=_SEGMENTS[kind],
            checkpoint_id=f"{kind}/{name}",
        )


class Cursor(Response):
    offset: int
    limit: int
    total_count: int


class CheckpointsListResponse(Response):
    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


class TrainingRun(Response):
    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    corrupted: bool = False
    lora_rank: int | None = None
    last_request_time: datetime
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None
    user_metadata: dict[str, str] | None = None


class TrainingRunsResponse(Response):
    training_runs: list[TrainingRun]
    cursor: Cursor


class ExternalWeightsUrlsResponse(Response):
    """Download addresses by relative file name, valid until ``expires``."""

    urls: dict[str, str]
    expires: datetime
