"""Checkpoints of a run: the file that lists them, how they are made, and what is needed to go on from one."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tinker
from tinker_cookbook import model_info
from tinker_cookbook.exceptions import CheckpointError, ConfigurationError
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.utils import trace

logger = logging.getLogger(__name__)

CheckpointKind: TypeAlias = Literal["state", "sampler", "both"]
RENDERER_NAME_METADATA_KEY = "renderer_name"
CHECKPOINTS_BASE_NAME = "checkpoints.jsonl"
DEFAULT_TTL_SECONDS = 604_800
_KNOWN = ("name", "batch", "epoch", "final", "state_path", "sampler_path")


@dataclass(frozen=True)
class CheckpointRecord:
    """One line of ``checkpoints.jsonl``. ``batch`` and ``epoch`` name the batch to train next."""

    name: str
    batch: int | None = None
    epoch: int | None = None
    final: bool | None = None
    state_path: str | None = None
    sampler_path: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        overlap = [key for key in self.extra if key in _KNOWN]
        if overlap:
            logger.warning("checkpoint %s: extra keys %s are fields and left out", self.name, overlap)
            object.__setattr__(self, "extra", {key: self.extra[key] for key in self.extra if key not in _KNOWN})

    def to_dict(self) -> dict[str, Any]:
        """JSON form; fields without a value are left out."""
        known = {key: getattr(self, key) for key in _KNOWN if getattr(self, key) is not None}
        return {**known, **self.extra}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> CheckpointRecord:
        """From the JSON form; unknown keys go to ``extra``."""
        extra = {key: value for key, value in d.items() if key not in _KNOWN}
        return cls(**{key: d[key] for key in _KNOWN if key in d}, extra=extra)

    def has(self, key: str) -> bool:
        """Whether a field has a value or an extra key is there."""
        return getattr(self, key) is not None if key in _KNOWN else key in self.extra

    def get(self, key: str, default: Any = None) -> Any:
        """Value of a field (which may be None) or of an extra key; ``default`` where there is no such key."""
        return getattr(self, key) if key in _KNOWN else self.extra.get(key, default)


def load_checkpoints_file(log_dir: str | Path) -> list[CheckpointRecord]:
    """All records of a run, oldest first; a torn last line is skipped."""
    return [CheckpointRecord.from_dict(row) for row in TrainingRunStore.local(log_dir).read_checkpoints()]


def get_last_checkpoint(log_dir: str | Path, required_key: str = "state_path") -> CheckpointRecord | None:
    """The newest record that has a value for the key."""
    found = [record for record in load_checkpoints_file(log_dir) if record.has(required_key)]
    return found[-1] if found else None


@trace.scope
async def save_checkpoint_async(
    training_client: tinker.TrainingClient,
    name: str,
    log_path: str | Path,
    loop_state: Mapping[str, Any],
    kind: CheckpointKind = "state",
    ttl_seconds: int | None = None,
    store: TrainingRunStore | None = None,
) -> dict[str, str]:
    """Save weights on the server and append a record. Returns ``state_path`` and/or ``sampler_path``.

    ``loop_state`` goes into the record as it is (batch, epoch, ...). ``ttl_seconds`` None: kept for ever.
    """
    if kind not in ("state", "sampler", "both"):
        raise ConfigurationError(f"kind={kind!r} is unknown; use state, sampler or both")
    futures: dict[str, Any] = {}
    if kind in ("state", "both"):
        futures["state_path"] = training_client.save_state(name, ttl_seconds=ttl_seconds)
    if kind in ("sampler", "both"):
        futures["sampler_path"] = training_client.save_weights_for_sampler(name, ttl_seconds=ttl_seconds)
    paths = {key: (await future).path for key, future in futures.items()}
    record = CheckpointRecord.from_dict({"name": name, **loop_state, **paths})
    (store or TrainingRunStore.local(log_path)).write_checkpoint(record.to_dict())
    logger.info("checkpoint %s: %s", name, ", ".join(f"{key}={path}" for key, path in paths.items()))
    return paths


def save_checkpoint(
    training_client: tinker.TrainingClient,
    name: str,
    log_path: str | Path,
    loop_state: Mapping[str, Any],
    kind: CheckpointKind = "state",
    ttl_seconds: int | None = None,
    store: TrainingRunStore | None = None,
) -> dict[str, str]:
    """``save_checkpoint_async`` for code without an event loop."""
    return asyncio.run(save_checkpoint_async(training_client, name, log_path, loop_state, kind, ttl_seconds, store))


# The renderer of a run is stored with it


def add_renderer_name_to_user_metadata(
    user_metadata: dict[str, str] | None, renderer_name: str | None
) -> dict[str, str]:
    """Add the renderer's name to the metadata, in place, and return them; None stands for new ones."""
    metadata = {} if user_metadata is None else user_metadata
    if renderer_name:
        metadata[RENDERER_NAME_METADATA_KEY] = renderer_name
    return metadata


def _rest_client(service_client: tinker.ServiceClient) -> Any:
    """The REST client of the same connection; its maker is deprecated, which is no news to a user of the cookbook."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return service_client.create_rest_client()


async def get_renderer_name_from_checkpoint_async(
    service_client: tinker.ServiceClient, checkpoint_path: str
) -> str | None:
    """Renderer with which a checkpoint was trained; None where that is not known."""
    rest = _rest_client(service_client)
    try:
        run = await rest.get_training_run_by_tinker_path(checkpoint_path)
    except tinker.TinkerError as error:
        logger.warning("metadata of %s cannot be read: %s", checkpoint_path, error)
        return None
    return (run.user_metadata or {}).get(RENDERER_NAME_METADATA_KEY)


def get_renderer_name_from_checkpoint(service_client: tinker.ServiceClient, checkpoint_path: str) -> str | None:
    """``get_renderer_name_from_checkpoint_async`` for code without an event loop."""
    return asyncio.run(get_renderer_name_from_checkpoint_async(service_client, checkpoint_path))


async def resolve_renderer_name_from_checkpoint_or_default_async(
    *,
    model_name: str,
    explicit_renderer_name: str | None,
    load_checkpoint_path: str | None = None,
    base_url: str | None = None,
) -> str:
    """The renderer asked for, else that of the checkpoint, else the recommended one of the model."""
    if explicit_renderer_name is not None:
        return explicit_renderer_name
    if load_checkpoint_path is not None:
        with tinker.ServiceClient(base_url=base_url) as service_client:
            name = await get_renderer_name_from_checkpoint_async(service_client, load_checkpoint_path)
        if name is not None:
            return name
    return model_info.get_recommended_renderer_name(model_name)


def resolve_renderer_name_from_checkpoint_or_default(
    *,
    model_name: str,
    explicit_renderer_name: str | None,
    load_checkpoint_path: str | None = None,
    base_url: str | None = None,
) -> str:
    """``resolve_renderer_name_from_checkpoint_or_default_async`` for code without an event loop."""
    return asyncio.run(
        resolve_renderer_name_from_checkpoint_or_default_async(
            model_name=model_name,
            explicit_renderer_name=explicit_renderer_name,
            load_checkpoint_path=load_checkpoint_path,
            base_url=base_url,
        )
    )


async def check_renderer_name_for_checkpoint_async(
    service_client: tinker.ServiceClient, checkpoint_path: str, expected_renderer_name: str | None
) -> bool:
    """Whether a checkpoint was trained with this renderer; a difference is logged as a warning."""
    if expected_renderer_name is None:
        return True
    stored = await get_renderer_name_from_checkpoint_async(service_client, checkpoint_path)
    if stored is None or stored == expected_renderer_name:
        return True
    logger.warning(
        "checkpoint %s was trained with renderer %r, this run uses %r", checkpoint_path, stored, expected_renderer_name
    )
    return False


def check_renderer_name_for_checkpoint(
    service_client: tinker.ServiceClient, checkpoint_path: str, expected_renderer_name: str | None
) -> bool:
    """``check_renderer_name_for_checkpoint_async`` for code without an event loop."""
    return asyncio.run(
        check_renderer_name_for_checkpoint_async(service_client, checkpoint_path, expected_renderer_name)
    )


async def open_training_client(
    service_client: tinker.ServiceClient,
    *,
    model_name: str,
    lora_rank: int,
    resume_from: CheckpointRecord | None,
    load_checkpoint_path: str | None,
    renderer_name: str | None,
    user_metadata: Mapping[str, str] | None = None,
    seed: int | None = None,
) -> tinker.TrainingClient:
    """The training client of a run: resumed with its optimizer, started from a checkpoint, or new.

    ``seed`` is that of a new adapter's first weights; None lets the server choose.

    Raises:
        CheckpointError: the record to resume from has no training state.
    """
    metadata = add_renderer_name_to_user_metadata(dict(user_metadata or {}), renderer_name)
    if resume_from is not None:
        if resume_from.state_path is None:
            raise CheckpointError(f"checkpoint {resume_from.name} has no state_path to resume from")
        logger.info("resuming from %s", resume_from.state_path)
        return await service_client.create_training_client_from_state_with_optimizer(
            resume_from.state_path, user_metadata=metadata
        )
    if load_checkpoint_path is not None:
        await check_renderer_name_for_checkpoint_async(service_client, load_checkpoint_path, renderer_name)
        return await service_client.create_training_client_from_state(load_checkpoint_path, user_metadata=metadata)
    return await service_client.create_lora_training_client(
        model_name, rank=lora_rank, seed=seed, user_metadata=metadata
    )


class CheckpointManager:
    """Decides when to save: periodic (state and sampler), rolling (state only, replaces the previous one), final.

    Args:
        save_every: steps between periodic checkpoints; 0: none.
        save_every_tokens: trained tokens between periodic checkpoints; 0: none.
        save_every_seconds: seconds between periodic checkpoints; 0: none.
        async_periodic_saves: ``maybe_save`` returns when the periodic checkpoint is asked for; ``finalize`` waits for it.
        rolling_save_every: steps between rolling checkpoints; 0: none. None is made on a periodic step.
    """

    def __init__(
        self,
        training_client: tinker.TrainingClient,
        service_client: tinker.ServiceClient,
        log_path: str | Path,
        save_every: int = 0,
        save_every_tokens: int = 0,
        save_every_seconds: float = 0.0,
        ttl_seconds: int | None = DEFAULT_TTL_SECONDS,
        rolling_save_every: int = 0,
        rolling_ttl_seconds: int | None = 7200,
        store: TrainingRunStore | None = None,
        async_periodic_saves: bool = False,
    ) -> None:
        self.training_client = training_client
        self.service_client = service_client
        self.log_path = log_path
        self.save_every = save_every
        self.save_every_tokens, self.save_every_seconds = save_every_tokens, save_every_seconds
        self.async_periodic_saves = async_periodic_saves
        self.ttl_seconds = ttl_seconds
        self.rolling_save_every = rolling_save_every
        self.rolling_ttl_seconds = rolling_ttl_seconds
        self.store = store or TrainingRunStore.local(log_path)
        self._rolling_path: str | None = None
        self._tokens_at_save, self._saved_at = 0, time.monotonic()
        self._saves: list[asyncio.Task[dict[str, str]]] = []
        rolling = [r for r in load_checkpoints_file(log_path) if r.extra.get("rolling")] if log_path else []
        if rolling:
            self._rolling_path = rolling[-1].state_path

    def restore_last_saved_tokens(self, last_saved_tokens: int) -> None:
        """Tell a resumed run how many tokens were trained when the last periodic checkpoint was made."""
        self._tokens_at_save = last_saved_tokens

    def should_save_periodic(self, step: int, *, elapsed_tokens: int = 0) -> bool:
        """Whether a periodic checkpoint is due before training this step, when so many tokens have been trained."""
        if step <= 0:
            return False
        by_step = self.save_every > 0 and step % self.save_every == 0
        by_tokens = 0 < self.save_every_tokens <= elapsed_tokens - self._tokens_at_save
        by_time = 0 < self.save_every_seconds <= time.monotonic() - self._saved_at
        return by_step or by_tokens or by_time

    def periodic_save_begins(self, elapsed_tokens: int) -> None:
        """Count tokens and seconds to the next periodic checkpoint from here."""
        self._tokens_at_save, self._saved_at = elapsed_tokens, time.monotonic()

    def should_save_rolling(self, step: int) -> bool:
        """Whether a rolling checkpoint is due before training this step."""
        due = self.rolling_save_every > 0 and step > 0 and step % self.rolling_save_every == 0
        return due and not self.should_save_periodic(step)

    async def save_periodic_async(self, step: int, loop_state: Mapping[str, Any]) -> dict[str, str]:
        """Save state and sampler weights."""
        return await save_checkpoint_async(
            self.training_client, f"{step:06d}", self.log_path, loop_state, "both", self.ttl_seconds, self.store
        )

    async def maybe_save_rolling_async(self, step: int, loop_state: Mapping[str, Any]) -> dict[str, str] | None:
        """Save the state if due, and delete the rolling checkpoint before it. A failure is logged: training goes on."""
        if not self.should_save_rolling(step):
            return None
        previous, state = self._rolling_path, {**loop_state, "rolling": True}
        try:
            paths = await save_checkpoint_async(
                self.training_client,
                f"{step:06d}",
                self.log_path,
                state,
                "state",
                self.rolling_ttl_seconds,
                self.store,
            )
        except Exception as error:
            logger.warning("rolling checkpoint %06d could not be saved: %s", step, error)
            return None
        self._rolling_path = paths["state_path"]
        if previous is not None and previous != self._rolling_path:
            await self._delete(previous)
        return paths

    async def maybe_save_async(
        self, step: int, loop_state: Mapping[str, Any], *, elapsed_tokens: int = 0
    ) -> dict[str, str] | None:
        """Periodic or rolling checkpoint if one is due. None also where the periodic one is still being made."""
        if not self.should_save_periodic(step, elapsed_tokens=elapsed_tokens):
            return await self.maybe_save_rolling_async(step, loop_state)
        self.periodic_save_begins(elapsed_tokens)
        state = {**loop_state, "elapsed_tokens": elapsed_tokens} if elapsed_tokens else loop_state
        if not self.async_periodic_saves:
            return await self.save_periodic_async(step, state)
        await self._wait()
        self._saves.append(asyncio.create_task(self.save_periodic_async(step, state)))
        await asyncio.sleep(0)  # the requests are made now, before the batch that follows
        return None

    async def save_final_async(self, loop_state: Mapping[str, Any]) -> dict[str, str]:
        """Save state and sampler weights for good."""
        return await save_checkpoint_async(
            self.training_client, "final", self.log_path, {**loop_state, "final": True}, "both", None, self.store
        )

    async def finalize_async(self, loop_state: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Wait for checkpoints that are being made; the rolling one is not needed any more.

        With ``loop_state``, the final checkpoint is made first and its paths are returned.
        """
        paths = await self.save_final_async(loop_state) if loop_state is not None else {}
        await self._wait()
        if self._rolling_path is not None:
            await self._delete(self._rolling_path)
            self._rolling_path = None
        return paths

    async def _wait(self) -> dict[str, str] | None:
        """Wait for the checkpoints that are being made. A failure is logged: training goes on. Returns the last one's paths."""
        pending, self._saves = self._saves, []
        results = await asyncio.gather(*pending, return_exceptions=True)
        for error in (result for result in results if isinstance(result, BaseException)):
            logger.error("a periodic checkpoint could not be saved: %s", error)
        return next((result for result in reversed(results) if isinstance(result, dict)), None)

    # For code without an event loop

    def save_periodic(self, step: int, loop_state: Mapping[str, Any]) -> dict[str, str]:
        """``save_periodic_async``."""
        return asyncio.run(self.save_periodic_async(step, loop_state))

    def maybe_save_rolling(self, step: int, loop_state: Mapping[str, Any]) -> dict[str, str] | None:
        """``maybe_save_rolling_async``."""
        return asyncio.run(self.maybe_save_rolling_async(step, loop_state))

    def maybe_save(self, step: int, loop_state: Mapping[str, Any], *, elapsed_tokens: int = 0) -> dict[str, str] | None:
        """``maybe_save_async``, which always waits for the checkpoint."""

        async def save() -> dict[str, str] | None:
            paths = await self.maybe_save_async(step, loop_state, elapsed_tokens=elapsed_tokens)
            return await self._wait() if self._saves else paths

        return asyncio.run(save())

    def save_final(self, loop_state: Mapping[str, Any]) -> dict[str, str]:
        """``save_final_async``."""
        return asyncio.run(self.save_final_async(loop_state))

    def finalize(self, loop_state: Mapping[str, Any] | None = None) -> dict[str, str]:
        """``finalize_async``."""
        return asyncio.run(self.finalize_async(loop_state))

    async def _delete(self, path: str) -> None:
        try:
            await _rest_client(self.service_client).delete_checkpoint_from_tinker_path(path)
        except Exception as error:
            logger.warning("rolling checkpoint %s could not be deleted: %s", path, error)
