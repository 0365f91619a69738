"""The embedded sampler: continuous batching over all versions of a base model."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import Future, InvalidStateError
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.batcher import Batcher, Job, Prompt, ReadChunk, Sample
from tinker_backend.runtime.decoder import Adapters
from tinker_backend.runtime.hardware import small_products
from tinker_backend.runtime.head import Head, clip_segments
from tinker_backend.runtime.lora import Adapter, AdapterLayout, AdapterSegment
from tinker_backend.runtime.packed_weights import packing
from tinker_backend.runtime.prompt_scores import PromptScores
from tinker_backend.runtime.roles import (
    LoraSpec,
    RuntimeFault,
    SamplePart,
    SampleRequest,
    SampleResult,
    Sequence,
    TopK,
)
from tinker_backend.runtime.sample_checks import check_request
from tinker_backend.runtime.sampler_attention import DecodeAttention, ReadAttention
from tinker_backend.runtime.sampler_version import SamplerVersion, WeightSet
from tinker_backend.runtime.stop_rules import StopRules
from tinker_backend.runtime.token_choice import ChoiceParams, choose, uniforms
from tinker_backend.runtime.training_run import FullLayout, TrainingRun
from tinker_backend.runtime.weight_files import read_manifest, read_values

log = logging.getLogger(__name__)

_FEW_ROWS = 4
_DIVERGED = (
    "the weights of this sampler give probabilities that are not finite: their training has diverged; "
    "go back to an earlier checkpoint and lower the learning rate"
)


class TorchSampler:
    """Versions and the samples that run on them. Not thread-safe: one thread calls it and drives ``step``."""

    def __init__(
        self, models: Mapping[str, BaseModel], kv_cache_tokens: int, max_batch_size: int, read_tokens: int = 1024
    ) -> None:
        self.models = models
        self.versions: dict[str, SamplerVersion] = {}
        self._base_sets = {id(base): WeightSet(base, dict(base.weights)) for base in models.values()}
        self._own_sets: list[WeightSet] = []
        self._jobs: dict[str, Job] = {}
        self._turn = 0
        longest = max(base.context for base in models.values())
        self.batcher = Batcher(max(kv_cache_tokens, 3 * longest), max_batch_size, read_tokens, self._weight_sets)

    def prepare(self) -> Iterator[None]:
        """Packs the base weights, one a turn, for time that nobody needs; samples run before, during and after it."""
        for weight_set in self._base_sets.values():
            weights, decoder = weight_set.weights, weight_set.base.decoder
            assert isinstance(weights, dict)
            yield from packing(weight_set.base.weights, weights, decoder.projection_names(weights))

    # --- versions

    def publish(self, run: TrainingRun, version: str) -> None:
        """Freezes the present weights of a run under a new name; base weights are shared, nothing is copied."""
        self._new_name(version)
        base = run.base
        run.share()
        if isinstance(run.layout, AdapterLayout):
            self.versions[version] = SamplerVersion(version, base, self._base_sets[id(base)], run.adapter())
        else:
            self._add_own(version, base, {n: w.detach() for n, w in run.weights().items()})

    def load(self, version: str, base_model: str, path: str | None) -> None:
        """Makes a saved folder, or the base model itself (``path`` None), known under ``version``."""
        self._new_name(version)
        if base_model not in self.models:
            raise RuntimeFault(f"base_model {base_model!r} is not served; served: {', '.join(self.models)}", "user")
        base = self.models[base_model]
        if path is None:
            self.versions[version] = SamplerVersion(version, base, self._base_sets[id(base)])
            return
        layout, values = read_values(base, LoraSpec(**read_manifest(path)["lora"]), path)
        if isinstance(layout, FullLayout):
            narrow = {n: w.to(base.dtype) for n, w in layout.tensors(values).items()}
            self._add_own(version, base, base.decoder.with_head(narrow))
        else:
            adapter = Adapter(layout, values, base.dtype)
            self.versions[version] = SamplerVersion(version, base, self._base_sets[id(base)], adapter)

    def drop(self, version: str) -> None:
        """Forgets a version; its running samples are cancelled, its cached prefixes freed."""
        known = self.versions.pop(version, None)
        if known is None:
            return
        for job in [j for j in self._jobs.values() if j.version is known]:
            self._fail(job, RuntimeFault(f"sampler {version!r} was dropped while it was sampling", "user"))
        self.batcher.prefixes.forget(version)
        self._own_sets = [s for s in self._own_sets if s is not known.weight_set]

    def _new_name(self, version: str) -> None:
        if version in self.versions:
            raise RuntimeFault(f"sampler version {version!r} exists already; every version needs a new name", "user")

    def _add_own(self, version: str, base: BaseModel, weights: Mapping[str, Tensor]) -> None:
        own = WeightSet(base, weights)
        self._own_sets.append(own)
        self.versions[version] = SamplerVersion(version, base, own)

    def _weight_sets(self) -> list[WeightSet]:
        return [*self._base_sets.values(), *self._own_sets]

    # --- requests

    def sample(
        self, request: SampleRequest, listener: Callable[[SamplePart], None] | None = None
    ) -> Future[SampleResult]:
        """Queues a request. The future fails with RuntimeFault; cancelling it is done with ``cancel``. ``listener``
        gets every token of every sequence as it is sampled.

        Raises RuntimeFault (user) at once when the request is wrong.
        """
        version = self.versions.get(request.sampler)
        if version is None:
            raise RuntimeFault(f"sampler {request.sampler!r} is not loaded in the runtime", "server")
        if request.request_id in self._jobs:
            raise RuntimeFault(f"request_id {request.request_id!r} is in use", "server")
        base = version.base
        max_tokens = check_request(request, base)
        stop_ids = base.eos_token_ids if request.stop_token_ids is None else request.stop_token_ids
        job = Job(
            request=request,
            version=version,
            future=Future(),
            seed=request.seed if request.seed is not None else int.from_bytes(os.urandom(8), "little"),
            params=ChoiceParams(request.temperature, request.top_k, request.top_p),
            rules=StopRules(
                stop_ids, request.stop_strings, max_tokens, base.tokenizer if request.stop_strings else None
            ),
            scores=PromptScores(request),
            listener=listener,
        )
        job.samples = [Sample(job, index) for index in range(request.num_samples)]
        if max_tokens == 0:
            for sample in job.samples:
                sample.stop_reason = "length"
        self._jobs[request.request_id] = job
        self.batcher.waiting.append(Prompt(job, np.array(request.tokens, dtype=np.int64), job.samples))
        return job.future

    def cancel(self, request_id: str) -> None:
        """Stops a request wherever it is; its future fails with RuntimeFault."""
        job = self._jobs.get(request_id)
        if job is not None:
            self._fail(job, RuntimeFault("the request was cancelled", "user"))

    def _fail(self, job: Job, fault: RuntimeFault) -> None:
        self.batcher.cancel(job)
        self._jobs.pop(job.request.request_id, None)
        _settle(job.future, fault)

    @property
    def idle(self) -> bool:
        """No request is under way."""
        return not self._jobs

    @property
    def waiting_requests(self) -> int:
        """Requests whose prompt has not been read yet."""
        return len(self.batcher.waiting)

    # --- computing

    @torch.no_grad()
    def step(self) -> None:
        """Reads some prompt tokens, then adds one token to every running sample of one weight set."""
        chunks = self.batcher.next_chunks()
        self._guarded_start(self.batcher.take_ready())
        if chunks:
            self._guarded_read(chunks)
        self.batcher.admit()
        active = [s for s in self._weight_sets() if s.running]
        if active:
            self._turn += 1
            chosen = active[self._turn % len(active)]
            try:
                self.batcher.ensure_space(chosen)
                with small_products() if chosen.running <= _FEW_ROWS else nullcontext():
                    self._decode(chosen)
            except Exception as error:
                log.exception("a decode step failed")
                jobs = {id(s.job): s.job for pool in chosen.pools.values() for s in pool.owners}
                for job in jobs.values():
                    self._fail(job, RuntimeFault(f"sampling failed: {type(error).__name__}: {error}"))

    def _guarded_read(self, chunks: list[ReadChunk]) -> None:
        try:
            self._read(chunks)
        except Exception as error:
            log.exception("reading %d prompts failed", len(chunks))
            if len(chunks) == 1:
                fault = RuntimeFault(f"sampling failed: {type(error).__name__}: {error}")
                self._fail(chunks[0].prompt.job, fault)
                return
            for chunk in chunks:
                self._guarded_read([chunk])

    def _read(self, chunks: list[ReadChunk]) -> None:
        """Runs prompt chunks of one weight set through the model, and starts the samples of those that are complete."""
        chunks = sorted(chunks, key=lambda c: (c.start > 0, c.prompt.job.version.name))
        weight_set = chunks[0].prompt.job.version.weight_set
        base = weight_set.base
        tokens = np.concatenate([c.prompt.tokens[c.start : c.stop] for c in chunks])
        positions = np.concatenate([np.arange(c.start, c.stop) for c in chunks])
        versions = [(c.prompt.job.version, c.stop - c.start) for c in chunks]
        segments = _segments(versions)
        hidden = base.decoder.hidden(
            weight_set.weights,
            torch.from_numpy(tokens).to(base.device),
            torch.from_numpy(positions).to(base.device),
            ReadAttention(chunks, base),
            Adapters(segments),
        )
        head = self._head(weight_set, segments)
        self._score_prompts(head, hidden, chunks)
        complete, rows, at = [], [], 0
        for chunk in chunks:
            at += chunk.stop - chunk.start
            chunk.prompt.computed = chunk.stop
            if chunk.stop == len(chunk.prompt.tokens):
                complete.append(chunk.prompt)
                rows.append(at - 1)
        for prompt, row in zip(complete, rows, strict=True):
            assert prompt.segment is not None
            prompt.segment.last_hidden = hidden[row : row + 1].clone()
        self._start(complete)

    def _guarded_start(self, prompts: list[Prompt]) -> None:
        for weight_set in {id(p.job.version.weight_set): p.job.version.weight_set for p in prompts}.values():
            group = [p for p in prompts if p.job.version.weight_set is weight_set]
            try:
                self._start(sorted(group, key=lambda p: p.job.version.name))
            except Exception as error:
                log.exception("starting %d prompts failed", len(group))
                for prompt in group:
                    self._fail(prompt.job, RuntimeFault(f"sampling failed: {type(error).__name__}: {error}"))

    def _start(self, prompts: list[Prompt]) -> None:
        """Chooses the first token of each sample of prompts whose last hidden state is known."""
        starting = [p for p in prompts if p.first_read and any(s.stop_reason is None for s in p.samples)]
        if starting:
            hidden = torch.cat(
                [p.segment.last_hidden for p in starting if p.segment and p.segment.last_hidden is not None]
            )
            segments = _segments([(p.job.version, 1) for p in starting])
            logits = self._head(starting[0].job.version.weight_set, segments).sampling_logits(hidden, segments)
            owners = [(place, sample) for place, p in enumerate(starting) for sample in p.samples]
            spread = logits[torch.tensor([place for place, _ in owners], device=logits.device)]
            self._append([sample for _, sample in owners], spread)
        for prompt in prompts:
            self.batcher.read(prompt)
            self._finish_if_done(prompt.job)

    def _head(self, weight_set: WeightSet, segments: list[AdapterSegment]) -> Head:
        return weight_set.base.decoder.head(weight_set.weights, segments)

    def _score_prompts(self, head: Head, hidden: Tensor, chunks: Seq[ReadChunk]) -> None:
        at = 0
        for chunk in chunks:
            size, scores = chunk.stop - chunk.start, chunk.prompt.job.scores
            low = max(chunk.start, scores.first_row)
            high = min(chunk.stop, len(chunk.prompt.tokens) - 1)
            if chunk.prompt.first_read and scores.wanted and low < high:
                for row in range(low, high, head.chunk_rows):
                    end = min(row + head.chunk_rows, high)
                    first, last = at + row - chunk.start, at + end - chunk.start
                    logits = head.sampling_logits(hidden[first:last], clip_segments(head.segments, first, last))
                    scores.collect(row, logits, torch.logsumexp(logits, -1, keepdim=True))
            at += size

    def _decode(self, weight_set: WeightSet) -> None:
        """One more token for every running sample of a weight set."""
        base = weight_set.base
        if not weight_set.running:
            return
        samples = [s for pool in weight_set.pools.values() for s in pool.owners]
        samples.sort(key=lambda s: s.job.version.name)
        tokens = torch.tensor([s.tokens[-1] for s in samples], device=base.device)
        positions = torch.tensor([s.cached for s in samples], device=base.device)
        segments = _segments([(s.job.version, 1) for s in samples])
        attention = DecodeAttention(weight_set, samples)
        hidden = base.decoder.hidden(weight_set.weights, tokens, positions, attention, Adapters(segments))
        for sample in samples:
            sample.cached += 1
        logits = self._head(weight_set, segments).sampling_logits(hidden, segments)
        self._append(samples, logits)
        for sample in samples:
            if sample.stop_reason is not None:
                self.batcher.leave(sample, keep=sample.stop_reason == "stop")
        for job in {id(s.job): s.job for s in samples if s.stop_reason is not None}.values():
            self._finish_if_done(job)

    def _append(self, samples: Seq[Sample], logits: Tensor) -> None:
        """Chooses the next token of each sample and notes whether it ends."""
        draws = uniforms([s.job.seed for s in samples], [s.index for s in samples], [len(s.tokens) for s in samples])
        top = max(s.job.request.topk_sample_logprobs for s in samples)
        choice = choose(logits, [s.job.params for s in samples], draws, top)
        diverged: dict[int, Job] = {}
        for row, (sample, token, logprob) in enumerate(
            zip(samples, choice.tokens.tolist(), choice.logprobs.tolist(), strict=True)
        ):
            if not math.isfinite(logprob):
                diverged[id(sample.job)] = sample.job
                continue
            sample.tokens.append(token)
            sample.logprobs.append(logprob)
            wanted = sample.job.request.topk_sample_logprobs
            if wanted and choice.top_ids is not None and choice.top_logprobs is not None:
                sample.top_ids.append(choice.top_ids[row, :wanted])
                sample.top_logprobs.append(choice.top_logprobs[row, :wanted])
            sample.stop_reason = sample.job.rules.ends(sample.tokens)
            if sample.job.listener is not None:
                sample.job.listener(_newest(sample))
        for job in diverged.values():
            self._fail(job, RuntimeFault(_DIVERGED, "user"))

    def _finish_if_done(self, job: Job) -> None:
        if job.unfinished or job.cancelled or job.request.request_id not in self._jobs:
            return
        del self._jobs[job.request.request_id]
        scores = job.scores
        _settle(
            job.future,
            SampleResult(
                sequences=[_sequence(sample) for sample in job.samples],
                prompt_logprobs=scores.prompt_logprobs(),
                topk_prompt_logprobs=scores.top(),
                target_prompt_logprobs=scores.targets(),
                prompt_alt_tokens=scores.alternatives(),
                prompt_cache_hit_tokens=job.cache_hits,
            ),
        )


def _segments(versions: Seq[tuple[SamplerVersion, int]]) -> list[AdapterSegment]:
    """Adapter segments of rows that are given as (version, count) in order; neighbours with one adapter are joined."""
    segments: list[AdapterSegment] = []
    at = 0
    for version, count in versions:
        last = segments[-1] if segments else None
        if last is not None and last.adapter is version.adapter:
            segments[-1] = AdapterSegment(last.start, at + count, last.adapter)
        else:
            segments.append(AdapterSegment(at, at + count, version.adapter))
        at += count
    return segments


def _newest(sample: Sample) -> SamplePart:
    """The token that the sample has just gained."""
    top = None
    if sample.job.request.topk_sample_logprobs:
        top = TopK(sample.top_ids[-1][None], sample.top_logprobs[-1][None])
    tokens, logprobs = np.array(sample.tokens[-1:], dtype=np.int32), np.array(sample.logprobs[-1:], dtype=np.float32)
    return SamplePart(sample.index, len(sample.tokens) - 1, tokens, logprobs, top)


def _sequence(sample: Sample) -> Sequence:
    top = None
    if sample.job.request.topk_sample_logprobs:
        k = sample.job.request.topk_sample_logprobs
        ids = np.array(sample.top_ids, dtype=np.int32).reshape(-1, k)
        top = TopK(ids, np.array(sample.top_logprobs, dtype=np.float32).reshape(-1, k))
    return Sequence(
        np.array(sample.tokens, dtype=np.int32),
        np.array(sample.logprobs, dtype=np.float32),
        "stop" if sample.stop_reason == "stop" else "length",
        top,
    )


def _settle(future: Future[SampleResult], outcome: SampleResult | RuntimeFault) -> None:
    try:
        if isinstance(outcome, RuntimeFault):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:
        log.debug("a result came for a request that nobody waits for")
