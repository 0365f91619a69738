"""One vLLM engine in a Ray actor: its versions, its batches, its sleep."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tinker_backend.runtime.ray.batch_gate import BatchGate
from tinker_backend.runtime.ray.blank_adapter import write_blank_adapter
from tinker_backend.runtime.ray.engine_folder import EngineFolder
from tinker_backend.runtime.ray.versions import LORA_BATCHES_ARE_SAFE_FROM, installed, numbers
from tinker_backend.runtime.ray.vllm_worker import REPLICA
from tinker_backend.runtime.ray.weight_broadcast import Channel, Item, plain
from tinker_backend.runtime.ray.weight_sync import wait_stable
from tinker_backend.runtime.roles import FloatArray, RuntimeFault, SampleRequest, SampleResult, Sequence, TopK

log = logging.getLogger(__name__)

EMPTY_LOGPROB = -99999.0
_HOTTEST = 2.0
"""The highest temperature that vLLM takes by itself."""
_BLANK_NUMBERS = 2**30
"""Adapter ids that no version has."""


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica needs to know. ``engine`` goes to vLLM's AsyncEngineArgs as it is."""

    folder: str
    eos_token_ids: tuple[int, ...]
    engine: dict[str, Any] = field(default_factory=dict)
    sleep_level: int = 1
    cpu_cache_gigabytes: int = 1
    """Size of the cache where there is no GPU."""
    publish_seconds: float = 300
    """How long a published folder may take to become complete where this replica looks."""


@dataclass(frozen=True)
class ServedVersion:
    """A name that requests use. ``number`` is vLLM's adapter id, never used twice."""

    name: str
    number: int
    path: str | None = None
    """None: the base model."""
    full: bool = False
    """All weights are of the version; else it is an adapter."""


class VllmReplica:
    """Serves samples. Methods are called concurrently."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self.settings = settings
        self._engine: Any = None
        self._folder: EngineFolder | None = None
        self._gate = BatchGate(self._switch)
        self._weights: str | None = None
        """Folder whose weights the engine holds in place of the base's; empty while nobody knows."""
        self._asleep = False
        self._mixed = True
        self._adapters: dict[int, ServedVersion] = {}
        self._incoming: dict[str, tuple[list[Item], str, Channel, int]] = {}
        """Folders whose weights are on their way over a channel, with the arguments of ``receive_weights``."""

    async def open(self) -> int:
        """Loads the model; returns the process id."""
        self._folder = EngineFolder()
        os.environ[REPLICA] = str(os.getpid())
        with self._folder.noting():
            await self._start_engine()
        return os.getpid()

    async def _start_engine(self) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        version = installed()["vllm"]
        self._mixed = version is not None and numbers(version) >= LORA_BATCHES_ARE_SAFE_FROM
        blank = not self._mixed and _products_take_the_last_slot() and bool(self.settings.engine.get("enable_lora"))
        engine = dict(self.settings.engine)
        if blank:
            engine["max_loras"] += 1
            engine["max_cpu_loras"] = max(engine["max_cpu_loras"], engine["max_loras"])
        self._engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=self.settings.folder,
                # What was sampled from, after temperature and truncation, is what the policy gradient needs.
                logprobs_mode="processed_logprobs",
                logits_processors=["tinker_backend.runtime.ray.heat:Heat"],
                disable_log_stats=True,
                **engine,
            )
        )
        if blank:
            await self._blank_last_slot(engine["max_loras"])

    async def _blank_last_slot(self, slots: int) -> None:
        """Fills all slots, the last for good, with an adapter that adds nothing (see ``blank_adapter``)."""
        from vllm.lora.request import LoRARequest

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "blank"
            await asyncio.to_thread(write_blank_adapter, Path(self.settings.folder), path)
            requests = [LoRARequest(f"blank-{slot}", _BLANK_NUMBERS + slot, str(path)) for slot in range(slots)]
            for request in requests:
                await self._engine.add_lora(request)
        await self._engine.pin_lora(requests[-1].lora_int_id)
        for request in requests[:-1]:
            await self._engine.remove_lora(request.lora_int_id)

    async def ping(self) -> int:
        """Raises when the engine is dead; the process id."""
        await self._engine.check_health()
        return os.getpid()

    async def close(self) -> None:
        """Ends the engine and its processes, and removes what they had."""
        if self._engine is not None:
            self._engine.shutdown()
        if self._folder is not None:
            self._folder.remove()

    # --- versions

    async def load(self, version: ServedVersion, patience: float | None = None) -> float:
        """Waits until the version's folder is complete and reads an adapter into the engine; seconds that it took.

        Raises RuntimeFault when it is not complete after ``patience`` seconds.
        """
        started, patience = time.monotonic(), self.settings.publish_seconds if patience is None else patience
        if version.path is not None:
            await asyncio.to_thread(wait_stable, Path(version.path), patience)
        if version.path is not None and not version.full and not self._asleep:
            await self._engine.add_lora(_lora_request(version))
            self._adapters[version.number] = version
        return time.monotonic() - started

    async def receive(
        self, version: ServedVersion, items: list[Item], dtype: str, channel: Channel, first: int
    ) -> None:
        """Takes all weights of a version from a channel; requests of other versions wait meanwhile."""
        assert version.path is not None
        self._incoming[version.path] = (items, dtype, channel, first)
        try:
            async with self._gate.enter(self._kind(version, False)):
                pass
        finally:
            del self._incoming[version.path]

    async def drop(self, version: ServedVersion) -> None:
        """Forgets an adapter. Its name, number and path are never used again."""
        if self._adapters.pop(version.number, None) is not None and not self._asleep:
            await self._engine.remove_lora(version.number)

    async def _switch(self, kind: Hashable) -> None:
        """Called with nothing running: brings in the base weights that requests of this kind need."""
        assert isinstance(kind, tuple)
        wanted = kind[0]
        if wanted == self._weights:
            return
        started = time.monotonic()
        await self._engine.pause_generation(mode="wait", clear_cache=True)
        # A change that fails leaves half of each.
        self._weights = ""
        try:
            path = self.settings.folder if wanted is None else wanted
            if path in self._incoming:
                await self._engine.collective_rpc("receive_weights", args=plain(*self._incoming[path]))
            else:
                await asyncio.to_thread(wait_stable, Path(path), self.settings.publish_seconds)
                await self._engine.collective_rpc("read_weights", args=(path,))
            self._weights = wanted
            # Keys and values of the old weights are wrong under the new ones.
            await self._engine.reset_prefix_cache()
        finally:
            await self._engine.resume_generation()
        log.info("weights of %s are in place after %.2f s", path, time.monotonic() - started)

    def _kind(self, version: ServedVersion, scores: bool) -> Hashable:
        weights = version.path if version.full else None
        if self._mixed or not self.settings.engine.get("enable_lora"):
            return (weights,)
        return (weights, version.path is not None and not version.full, scores)

    # --- sleep

    async def sleep(self) -> None:
        """Gives the GPU's memory to the trainer. Nothing may be running."""
        if self._asleep:
            return
        await self._engine.reset_prefix_cache()
        await self._engine.sleep(level=self.settings.sleep_level)
        self._asleep = True

    async def wake(self) -> None:
        """Takes it back: weights first, then what depends on them, then the cache."""
        if not self._asleep:
            return
        await self._engine.wake_up(tags=["weights"])
        if self.settings.sleep_level == 2:
            path = self._weights or self.settings.folder
            await self._engine.collective_rpc("read_weights", args=(path,))
        await self._engine.wake_up(tags=["kv_cache"])
        self._asleep = False
        if self.settings.sleep_level == 2:
            for version in self._adapters.values():
                await self._engine.remove_lora(version.number)
                await self._engine.add_lora(_lora_request(version))
        await self._engine.reset_prefix_cache()

    # --- samples

    async def sample(self, request: SampleRequest, version: ServedVersion, max_tokens: int) -> SampleResult:
        """One request. Prompt scores are those of vLLM, so only ask where they are right (see ``VllmSampler``)."""
        scores = request.prompt_logprobs or request.topk_prompt_logprobs > 0
        await self._check_folder(version)
        async with self._gate.enter(self._kind(version, scores)):
            output: Any = None
            adapted = version.path is not None and not version.full
            stream = self._engine.generate(
                {"prompt_token_ids": np.asarray(request.tokens).tolist()},
                self._params(request, max_tokens),
                request_id=request.request_id,
                lora_request=_lora_request(version) if adapted else None,
            )
            async for step in stream:
                output = step
        if output is None or not output.finished:
            raise RuntimeFault("the request was cancelled", "user")
        return _result(request, output, max_tokens)

    async def _check_folder(self, version: ServedVersion) -> None:
        """Raises RuntimeFault when an adapter is neither on disk nor in the engine, which would die of the attempt."""
        if version.path is None or version.full or await asyncio.to_thread(Path(version.path).is_dir):
            return
        if version.number not in await self._engine.list_loras():
            raise RuntimeFault(f"the weights of sampler {version.name!r} are gone: {version.path} was deleted", "user")

    async def cancel(self, request_id: str) -> None:
        """Stops a request; it ends with a RuntimeFault."""
        await self._engine.abort(request_id)

    def _params(self, request: SampleRequest, max_tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        stops = self.settings.eos_token_ids if request.stop_token_ids is None else request.stop_token_ids
        scores: int | None = request.topk_prompt_logprobs
        hot = request.temperature > _HOTTEST
        return SamplingParams(
            n=request.num_samples,
            temperature=min(request.temperature, _HOTTEST),
            extra_args={"tinker_heat": request.temperature / _HOTTEST} if hot else None,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
            max_tokens=max(1, max_tokens),
            logprobs=request.topk_sample_logprobs,
            prompt_logprobs=scores if request.prompt_logprobs or scores else None,
            stop=list(request.stop_strings) or None,
            stop_token_ids=list(stops),
            ignore_eos=True,
            detokenize=bool(request.stop_strings),
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _products_take_the_last_slot() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _lora_request(version: ServedVersion) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(version.name, version.number, version.path)


def _result(request: SampleRequest, output: Any, max_tokens: int) -> SampleResult:
    completions = sorted(output.outputs, key=lambda completion: completion.index)
    sequences = [_sequence(request, completion) for completion in completions]
    if max_tokens == 0:
        nothing = Sequence(np.zeros(0, np.int32), np.zeros(0, np.float32), "length")
        sequences = [replace(nothing) for _ in completions]
    logprobs, top = _prompt_scores(request, output.prompt_logprobs)
    cached = int(getattr(output, "num_cached_tokens", 0) or 0)
    return SampleResult(sequences, logprobs, top, prompt_cache_hit_tokens=cached)


def _sequence(request: SampleRequest, completion: Any) -> Sequence:
    tokens = np.array(completion.token_ids, dtype=np.int32)
    rows = completion.logprobs or []
    logprobs = np.array([row[int(t)].logprob for t, row in zip(tokens, rows, strict=True)], dtype=np.float32)
    top = None
    if request.topk_sample_logprobs:
        top = _topk(rows, request.topk_sample_logprobs)
    return Sequence(tokens, logprobs, "stop" if completion.finish_reason == "stop" else "length", top)


def _topk(rows: Any, k: int) -> TopK:
    ids = np.zeros((len(rows), k), dtype=np.int32)
    logprobs = np.full((len(rows), k), EMPTY_LOGPROB, dtype=np.float32)
    for number, row in enumerate(rows):
        ranked = sorted((row or {}).items(), key=lambda item: (-item[1].logprob, item[0]))[:k]
        for column, (token, entry) in enumerate(ranked):
            ids[number, column], logprobs[number, column] = token, max(entry.logprob, EMPTY_LOGPROB)
    return TopK(ids, logprobs)


def _prompt_scores(request: SampleRequest, rows: Any) -> tuple[FloatArray | None, TopK | None]:
    if rows is None:
        return None, None
    logprobs = np.full(len(request.tokens), np.nan, dtype=np.float32)
    first = 1
    if request.prompt_logprobs_last_n and not request.topk_prompt_logprobs:
        first = max(1, len(request.tokens) - request.prompt_logprobs_last_n)
    for place in range(first, len(rows)):
        logprobs[place] = rows[place][int(request.tokens[place])].logprob
    top = _topk(rows, request.topk_prompt_logprobs) if request.topk_prompt_logprobs else None
    return (logprobs if request.prompt_logprobs else None), top


def eos_of(folder: Path, default: tuple[int, ...]) -> tuple[int, ...]:
    """End-of-sequence ids of ``generation_config.json``, else ``default``."""
    path = folder / "generation_config.json"
    eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    if eos is None:
        return default
    return tuple(eos) if isinstance(eos, list) else (int(eos),)
