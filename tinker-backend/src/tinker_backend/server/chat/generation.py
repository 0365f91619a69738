"""From a door to the sampler: which weights a model name means, and the growing answer as it comes."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoints.paths import SCHEME, TinkerPath
from ...checkpoints.store import require_kind
from ...dispatch.admission import check_sample_request
from ...dispatch.samplers import SamplerRecord
from ...errors import BadRequest, NotFound
from ...runtime.roles import ModelCard, SamplePart, SampleRequest, SampleResult
from ...wire.prompts import token_array
from .conversation import Settings
from .openai_answers import Scored
from .tokenizer import ChatTokenizer, open_tokenizer

if TYPE_CHECKING:
    from ..backend import Backend
    from ..principal import Principal


@dataclass(frozen=True)
class Target:
    """The weights that a request names."""

    name: str
    """As the client wrote it."""
    card: ModelCard
    record: SamplerRecord

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer. Raises Unavailable."""
        return open_tokenizer(self.card.tokenizer_path)


async def find_target(backend: Backend, model: str, principal: Principal) -> Target:
    """``model`` is a base model or alias, a ``tinker://`` sampler path, or ``base;path``.

    Raises NotFound (no such model or checkpoint), Forbidden (someone else's), BadRequest (they do not fit together).
    """
    base, _, path = model.partition(";") if ";" in model else ("", "", model)
    if not path.startswith(SCHEME):
        if base:
            raise BadRequest(f"model {model[:200]!r}: write a tinker:// sampler path after the semicolon")
        card = await _card(backend, path)
        return Target(model, card, _record(backend, principal, card, f"base:{card.name}"))
    parsed = TinkerPath.parse(path)
    require_kind(parsed, "sampler", "model")
    checkpoint = await backend.store.readable(parsed, principal)
    card = await _card(backend, checkpoint.spec["base_model"])
    if base and (await _card(backend, base)).name != card.name:
        raise BadRequest(f"model: the checkpoint {path} was trained on {card.name!r}, not on {base[:200]!r}")
    version = f"saved:{parsed}@{checkpoint.created_at:.3f}"
    return Target(model, card, _record(backend, principal, card, version, path, checkpoint.folder))


def _record(
    backend: Backend,
    principal: Principal,
    card: ModelCard,
    version: str,
    path: str | None = None,
    folder: Path | None = None,
) -> SamplerRecord:
    """The sampler that this door uses for a weights version, one for each caller; other samplers share the version."""
    if not card.sampleable:
        raise BadRequest(f"model {card.name!r} cannot be sampled here")
    kind = "base" if path is None else "saved"
    sampler_id = f"door:{principal.owner}:{version}"
    record = SamplerRecord(sampler_id, "", principal.owner, card.name, card.name, path, kind, version)
    backend.samplers.keep(record, folder)
    return record


async def _card(backend: Backend, name: str) -> ModelCard:
    try:
        return await backend.card(name, "model")
    except BadRequest as error:
        raise NotFound(str(error)) from error


def sample_request(backend: Backend, target: Target, tokens: list[int], settings: Settings) -> SampleRequest:
    """The request to the sampler; ``max_tokens`` is cut to what the context leaves. Raises BadRequest."""
    room = target.card.max_context_length - len(tokens)
    if room < 1:
        raise BadRequest(
            f"the prompt has {len(tokens)} tokens; {target.card.name} takes {target.card.max_context_length} with the answer"
        )
    stop_ids = [*target.card.eos_token_ids, *settings.stop_token_ids] if settings.stop_token_ids else None
    request = SampleRequest(
        request_id=f"door:{uuid.uuid4().hex}",
        sampler=target.record.version,
        tokens=token_array(tokens, "prompt"),
        num_samples=settings.count,
        max_tokens=min(room, room if settings.max_tokens is None else settings.max_tokens),
        # A seed of its own makes the answer the same when the runtime dies in the middle and it is sampled again.
        seed=secrets.randbits(63) if settings.seed is None else settings.seed,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        stop_token_ids=stop_ids,
        stop_strings=list(settings.stop),
        topk_sample_logprobs=settings.top_logprobs or 0,
    )
    check_sample_request(request, target.card, backend.config.limits)
    return request


async def generate(
    backend: Backend, target: Target, request: SampleRequest
) -> AsyncIterator[SamplePart | SampleResult]:
    """The answer's parts as they are sampled, then the whole result. The parts of a sequence hold all its tokens, each
    once. Closing the iterator cancels the sample. Raises ApiError."""
    queue: asyncio.Queue[SamplePart | None] = asyncio.Queue()
    task = asyncio.create_task(backend.sampling.direct(target.record, request, queue.put_nowait))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    seen = [0] * request.num_samples
    try:
        while (part := await queue.get()) is not None:
            if fresh := _after(part, seen[part.index]):
                seen[part.index] += len(fresh.tokens)
                yield fresh
        result = task.result()
        for index, sequence in enumerate(result.sequences):
            whole = SamplePart(index, 0, sequence.tokens, sequence.logprobs, sequence.topk)
            if rest := _after(whole, seen[index]):
                yield rest
        yield result
    finally:
        task.cancel()


def _after(part: SamplePart, position: int) -> SamplePart | None:
    """What of ``part`` lies at or after ``position`` of its sequence."""
    skip = position - part.offset
    if skip >= len(part.tokens):
        return None
    if skip <= 0:
        return part
    topk = None if part.topk is None else type(part.topk)(part.topk.token_ids[skip:], part.topk.logprobs[skip:])
    return SamplePart(part.index, position, part.tokens[skip:], part.logprobs[skip:], topk)


async def whole_result(backend: Backend, target: Target, request: SampleRequest) -> SampleResult:
    """The result alone. Raises ApiError."""
    return await backend.sampling.direct(target.record, request)


def scored(part: SamplePart) -> list[Scored]:
    """The tokens of a part with their logprobs and alternatives."""
    rows: list[Scored] = []
    for position, (token, logprob) in enumerate(zip(part.tokens.tolist(), part.logprobs.tolist(), strict=True)):
        top: tuple[tuple[int, float], ...] = ()
        if part.topk is not None:
            ids, logprobs = part.topk.token_ids[position].tolist(), part.topk.logprobs[position].tolist()
            top = tuple((i, lp) for i, lp in zip(ids, logprobs, strict=True) if lp > -99999.0)
        rows.append(Scored(token, logprob, top))
    return rows
