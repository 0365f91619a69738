"""``tinker://<run>/<weights|sampler_weights|external_weights>/<name>``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import BadRequest

Kind = Literal["training", "sampler", "external"]
SEGMENTS: dict[Kind, str] = {"training": "weights", "sampler": "sampler_weights", "external": "external_weights"}
_KINDS: dict[str, Kind] = {segment: kind for kind, segment in SEGMENTS.items()}
SCHEME = "tinker://"


@dataclass(frozen=True)
class TinkerPath:
    """Where a checkpoint is, in the client's terms."""

    run_id: str
    kind: Kind
    name: str

    @property
    def checkpoint_id(self) -> str:
        """The last two segments, e.g. ``weights/final``."""
        return f"{SEGMENTS[self.kind]}/{self.name}"

    def __str__(self) -> str:
        return f"{SCHEME}{self.run_id}/{self.checkpoint_id}"

    @classmethod
    def parse(cls, text: str) -> TinkerPath:
        """Raises BadRequest."""
        parts = text.removeprefix(SCHEME).split("/")
        if not text.startswith(SCHEME) or len(parts) != 3 or not all(parts) or parts[1] not in _KINDS:
            raise BadRequest(
                f"{text[:200]!r} is no checkpoint path; write tinker://<run>/<weights|sampler_weights|external_weights>/<name>"
            )
        return cls(parts[0], _KINDS[parts[1]], parts[2])

    @classmethod
    def of(cls, run_id: str, checkpoint_id: str) -> TinkerPath:
        """From the two halves that REST paths carry. Raises BadRequest."""
        return cls.parse(f"{SCHEME}{run_id}/{checkpoint_id}")
