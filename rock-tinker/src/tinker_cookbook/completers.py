"""Policies: tokens in, tokens out; or messages in, message out."""

from __future__ import annotations

import contextvars
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import tinker

if TYPE_CHECKING:
    from tinker_cookbook.renderers import Message, Renderer

StopCondition: TypeAlias = list[str] | list[int]


@dataclass
class TokensWithLogprobs:
    """Sampled tokens. ``maybe_logprobs``: one per token under the distribution that was sampled from, or None.

    ``stop_reason``: "stop" or "length". ``sequence_id`` names the sequence on the server.
    """

    tokens: list[int]
    maybe_logprobs: list[float] | None
    stop_reason: str = "stop"
    sequence_id: str | None = None
    prompt_cache_hit_tokens: int = 0

    @property
    def logprobs(self) -> list[float]:
        """Logprobs, which must be there."""
        if self.maybe_logprobs is None:
            raise ValueError("these tokens were sampled without logprobs")
        return self.maybe_logprobs


class TokenCompleter:
    """A policy over tokens."""

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Continue a prompt. ``max_tokens`` caps this answer; None leaves it to the policy."""
        raise NotImplementedError


class MessageCompleter:
    """A policy over messages."""

    async def __call__(self, messages: list[Message]) -> Message:
        """Answer a conversation."""
        raise NotImplementedError


_seed_key: contextvars.ContextVar[tuple[object, ...] | None] = contextvars.ContextVar("seed_key", default=None)
_seed_calls: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("seed_calls", default=None)


@contextmanager
def seed_scope(*key: object) -> Iterator[None]:
    """Samples inside are drawn with seeds that follow from the key and the number of the call.

    Scopes nest: the key of an inner one is appended. Concurrent tasks need a scope each.
    """
    outer = _seed_key.get() or ()
    key_token, calls_token = _seed_key.set((*outer, *key)), _seed_calls.set([0])
    try:
        yield
    finally:
        _seed_key.reset(key_token)
        _seed_calls.reset(calls_token)


def seeded() -> bool:
    """Whether sampling here is seeded."""
    return _seed_key.get() is not None


def next_seed() -> int | None:
    """Seed of the next sample; None outside any scope."""
    key, calls = _seed_key.get(), _seed_calls.get()
    if key is None or calls is None:
        return None
    calls[0] += 1
    digest = hashlib.sha256(repr((key, calls[0])).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclass
class TinkerTokenCompleter(TokenCompleter):
    """Samples from a server. With ``context_window``, prompt and answer together stay within it."""

    sampling_client: tinker.SamplingClient
    max_tokens: int
    temperature: float = 1.0
    context_window: int | None = None

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        max_tokens = self.max_tokens if max_tokens is None else min(self.max_tokens, max_tokens)
        if self.context_window is not None:
            max_tokens = min(max_tokens, self.context_window - model_input.length)
            if max_tokens < 1:
                raise ValueError(f"prompt of {model_input.length} tokens fills context_window={self.context_window}")
        params = tinker.SamplingParams(stop=stop, max_tokens=max_tokens, temperature=self.temperature, seed=next_seed())
        response = await self.sampling_client.sample(prompt=model_input, num_samples=1, sampling_params=params)
        sequence = response.sequences[0]
        return TokensWithLogprobs(
            tokens=list(sequence.tokens),
            maybe_logprobs=None if sequence.logprobs is None else list(sequence.logprobs),
            stop_reason=str(sequence.stop_reason),
            sequence_id=getattr(sequence, "sequence_id", None),
            prompt_cache_hit_tokens=int(getattr(response, "prompt_cache_hit_tokens", 0) or 0),
        )


class TinkerMessageCompleter(MessageCompleter):
    """Renders, samples and parses. Tool calls that could not be read stay in the message."""

    def __init__(
        self,
        sampling_client: tinker.SamplingClient,
        renderer: Renderer,
        max_tokens: int,
        stop_condition: StopCondition | None = None,
        temperature: float = 1.0,
        context_window: int | None = None,
    ) -> None:
        self.renderer = renderer
        self.stop_condition = stop_condition if stop_condition is not None else renderer.get_stop_sequences()
        self._tokens = TinkerTokenCompleter(sampling_client, max_tokens, temperature, context_window)

    async def __call__(self, messages: list[Message]) -> Message:
        prompt = self.renderer.build_generation_prompt(messages)
        sampled = await self._tokens(prompt, self.stop_condition)
        message, _ = self.renderer.parse_response(sampled.tokens)
        return message
