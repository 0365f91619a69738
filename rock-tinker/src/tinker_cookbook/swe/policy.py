"""The policy as an OpenAI endpoint without a socket: a request body in, an answer body out, every token recorded."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass
from typing import Any, Protocol

from tinker_cookbook.swe.budget import Deadline, TokenBudget
from tinker_cookbook.swe.chat_format import ChatFormat, Prompt
from tinker_cookbook.swe.errors import RequestRefused, RolloutFailed
from tinker_cookbook.swe.messages import ChatRequest, Message, read_request
from tinker_cookbook.swe.tool_calls import parse_tool_calls
from tinker_cookbook.swe.trajectory import Turn

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, one logprob each, and why sampling stopped ("stop" or "length")."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: str


class TokenSampler(Protocol):
    """Something that continues a prompt."""

    async def sample(
        self,
        prompt: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
        stop: tuple[str, ...],
    ) -> Completion: ...


class Policy:
    """What all rollouts of one weights version share.

    Args:
        sampler: continues prompts with these weights.
        chat: the model's template and tokenizer.
        budget: token limits of one call.
        model: name that the answers carry.
    """

    def __init__(self, sampler: TokenSampler, chat: ChatFormat, budget: TokenBudget, model: str) -> None:
        self.sampler = sampler
        self.chat = chat
        self.budget = budget
        self.model = model

    def conversation(self, temperature: float = 1.0, label: str = "") -> Conversation:
        """A fresh recorder for one rollout; `label` begins its lines in the log."""
        return Conversation(self, temperature, label)


class Conversation:
    """The model calls of one rollout. Calls may overlap; `turns` holds them in the order in which they were answered."""

    def __init__(self, policy: Policy, temperature: float, label: str = "") -> None:
        self._policy = policy
        self._temperature = temperature
        self._label = label
        self.turns: list[Turn] = []
        self.refusals: list[str] = []

    async def answer(self, body: Any, deadline: Deadline) -> dict[str, Any]:
        """Answers one chat completion request.

        Returns:
            An OpenAI chat completion.

        Raises:
            RequestRefused: the request is wrong or too long; the rollout can go on.
            RolloutFailed: sampling failed or the deadline passed.
        """
        started = time.monotonic()
        try:
            request = read_request(body, temperature=self._temperature)
            prompt = self._policy.chat.prompt(request, self.turns)
            max_tokens = self._room(request, prompt)
        except RequestRefused as refusal:
            self.refusals.append(str(refusal))
            raise
        completion = await self._sample(request, prompt, max_tokens, deadline)
        turn = self._record(request, prompt, completion, time.monotonic() - started)
        return self._completion_body(turn)

    def _room(self, request: ChatRequest, prompt: Prompt) -> int:
        """How many tokens may be sampled; a prompt over the limit is refused as OpenAI does it."""
        budget, length = self._policy.budget, len(prompt.tokens)
        if length > budget.max_input:
            raise RequestRefused(
                400,
                f"This model's maximum context length is {budget.max_input} tokens for the prompt. However, your "
                f"messages resulted in {length} tokens. Please reduce the length of the messages.",
                code="context_length_exceeded",
                param="messages",
            )
        asked = budget.max_output if request.max_tokens is None else min(request.max_tokens, budget.max_output)
        return min(asked, budget.context - length)

    async def _sample(self, request: ChatRequest, prompt: Prompt, max_tokens: int, deadline: Deadline) -> Completion:
        deadline.check("sampling")
        try:
            async with asyncio.timeout(deadline.remaining()):
                completion = await self._policy.sampler.sample(
                    prompt.tokens,
                    max_tokens=max_tokens,
                    temperature=request.temperature,
                    top_p=request.top_p,
                    seed=request.seed,
                    stop=request.stop,
                )
        except TimeoutError as error:
            raise deadline.exceeded("sampling") from error
        except Exception as error:
            raise RolloutFailed("sampling", f"{type(error).__name__}: {error}") from error
        if len(completion.tokens) != len(completion.logprobs):
            raise RolloutFailed(
                "sampling", f"{len(completion.tokens)} tokens came with {len(completion.logprobs)} logprobs"
            )
        return completion

    def _record(self, request: ChatRequest, prompt: Prompt, completion: Completion, seconds: float) -> Turn:
        text = self._policy.chat.completion_text(completion.tokens)
        parsed = parse_tool_calls(text) if request.tools else None
        answer: Message = {"role": "assistant", "content": parsed.content if parsed else text}
        if parsed and parsed.tool_calls:
            answer["tool_calls"] = parsed.tool_calls
        turn = Turn(
            index=len(self.turns),
            messages=request.messages,
            answer=answer,
            prompt_text=prompt.text,
            prompt_tokens=prompt.tokens,
            completion_tokens=completion.tokens,
            logprobs=completion.logprobs,
            completion_text=text,
            finish_reason="tool_calls" if answer.get("tool_calls") else completion.stop_reason,
            reused_tokens=prompt.reused_tokens,
            temperature=request.temperature,
            seconds=seconds,
        )
        self.turns.append(turn)
        log.info(
            "%sturn %d: %d prompt tokens (%d reused), %d sampled, %.1f s",
            self._label,
            turn.index,
            len(turn.prompt_tokens),
            turn.reused_tokens,
            len(turn.completion_tokens),
            turn.seconds,
        )
        return turn

    def _completion_body(self, turn: Turn) -> dict[str, Any]:
        prompt, sampled = len(turn.prompt_tokens), len(turn.completion_tokens)
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._policy.model,
            "choices": [{"index": 0, "message": turn.answer, "finish_reason": turn.finish_reason, "logprobs": None}],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": sampled,
                "total_tokens": prompt + sampled,
                "prompt_tokens_details": {"cached_tokens": turn.reused_tokens},
            },
        }
