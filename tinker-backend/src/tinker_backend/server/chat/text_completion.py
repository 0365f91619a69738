"""Continuations of plain prompts: the older of the two OpenAI endpoints, with echo and prompt logprobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import ApiError, BadRequest
from . import openai_answers as answers
from .conversation import Settings
from .generation import Target, whole_result
from .openai_answers import Scored
from .openai_requests import CompletionBody
from .reply import Growth, Reply

if TYPE_CHECKING:
    from ..backend import Backend


class TextCompletion:
    """One request: several prompts, ``n`` answers each; the answers of prompt i come at index i * n."""

    def __init__(
        self,
        backend: Backend,
        target: Target,
        body: CompletionBody,
        settings: Settings,
        prompts: list[str | list[int]],
    ) -> None:
        self._backend = backend
        self._target = target
        self._body = body
        self._count = settings.count
        self._scores_only = settings.max_tokens == 0
        if body.stream and body.echo and body.logprobs is not None:
            raise BadRequest("stream: echo with logprobs comes in one piece; set stream to false")
        # The sampler always draws at least one token; it is not shown when none was asked for.
        drawn = replace(settings, max_tokens=1) if self._scores_only else settings
        self._replies = [self._reply(prompt, drawn) for prompt in prompts]

    def _reply(self, prompt: str | list[int], settings: Settings) -> Reply:
        tokenizer = self._target.tokenizer
        if isinstance(prompt, str):
            prompt = tokenizer.encode(prompt, self._body.add_special_tokens)
            if not prompt:
                prompt = tokenizer.encode(
                    tokenizer.specials.get("bos_token") or tokenizer.specials.get("eos_token", "")
                )
        if not prompt:
            raise BadRequest("prompt: it is empty, and the model has no token to begin with")
        return Reply(self._backend, self._target, prompt, settings, None, "")

    def usage(self) -> dict[str, Any]:
        """Token counts of all prompts and answers."""
        written = 0 if self._scores_only else sum(reply.completion_tokens for reply in self._replies)
        read = sum(len(reply.prompt) for reply in self._replies)
        return answers.usage(read, written, sum(reply.cached for reply in self._replies))

    async def choices(self) -> list[dict[str, Any]]:
        """All answers. Raises ApiError."""
        tasks = [asyncio.create_task(self._finish(reply)) for reply in self._replies]
        try:
            scores = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return [
            self._choice(prompt_index * self._count + index, reply, index, prompt)
            for prompt_index, (reply, prompt) in enumerate(zip(self._replies, scores, strict=True))
            for index in range(self._count)
        ]

    async def _finish(self, reply: Reply) -> list[Scored]:
        """Samples, and scores the prompt when its logprobs are wanted too."""
        if not (self._body.echo and self._body.logprobs is not None):
            await reply.finish()
            return []
        request = replace(
            reply.request,
            request_id=f"{reply.request.request_id}:prompt",
            num_samples=1,
            max_tokens=1,
            prompt_logprobs=True,
            topk_prompt_logprobs=self._body.logprobs,
        )
        scored, _ = await asyncio.gather(whole_result(self._backend, self._target, request), reply.finish())
        logprobs, rows = scored.prompt_logprobs, scored.topk_prompt_logprobs
        assert logprobs is not None
        prompt: list[Scored] = []
        for position, token in enumerate(reply.prompt):
            top: tuple[tuple[int, float], ...] = ()
            if rows is not None:
                pairs = zip(rows.token_ids[position].tolist(), rows.logprobs[position].tolist(), strict=True)
                top = tuple((i, lp) for i, lp in pairs if lp > -99999.0)
            prompt.append(Scored(token, float(logprobs[position]), top))
        return prompt

    def _choice(self, number: int, reply: Reply, index: int, prompt: list[Scored]) -> dict[str, Any]:
        tokenizer = self._target.tokenizer
        answer = reply.answers[index]
        text = "" if self._scores_only else answer.text
        written = [] if self._scores_only else reply.scored[index]
        if self._body.echo:
            text = tokenizer.text(reply.prompt) + text
        logprobs = None
        if self._body.logprobs is not None:
            logprobs = answers.text_logprobs(tokenizer, [*prompt, *written])
        choice = answers.text_choice(number, text, "length" if self._scores_only else reply.finishes[index], logprobs)
        if self._body.return_token_ids:
            choice |= {"prompt_token_ids": reply.prompt, "token_ids": [] if self._scores_only else answer.tokens}
        return choice

    async def events(self, head: dict[str, Any]) -> AsyncIterator[str]:
        """The answers as a stream of events, those of different prompts mixed as they come."""
        offsets = [0] * (len(self._replies) * self._count)
        try:
            if self._body.echo:
                for number in range(len(offsets)):
                    text = self._target.tokenizer.text(self._replies[number // self._count].prompt)
                    yield answers.sse({**head, "choices": [answers.text_choice(number, text, None)]})
            async for prompt_index, growth in self._merged():
                number = prompt_index * self._count + growth.index
                choice = self._chunk(number, growth, offsets)
                if choice is not None and not self._scores_only:
                    yield answers.sse({**head, "choices": [choice]})
                if growth.finish is not None:
                    yield answers.sse({**head, "choices": [answers.text_choice(number, "", growth.finish)]})
            if self._body.wants_usage:
                yield answers.sse({**head, "choices": [], "usage": self.usage()})
            yield answers.sse("[DONE]")
        except ApiError as error:
            yield answers.sse(answers.error_body(error.status, str(error)))

    def _chunk(self, number: int, growth: Growth, offsets: list[int]) -> dict[str, Any] | None:
        text = "".join(part for part in growth.parts if isinstance(part, str))
        wants_more = growth.scored and (self._body.logprobs is not None or self._body.return_token_ids)
        if not text and not wants_more:
            return None
        choice = answers.text_choice(number, text, None)
        if self._body.logprobs is not None and growth.scored:
            logprobs = answers.text_logprobs(self._target.tokenizer, growth.scored, offsets[number])
            offsets[number] += sum(map(len, logprobs["tokens"]))
            choice["logprobs"] = logprobs
        if self._body.return_token_ids and growth.scored:
            choice["token_ids"] = [one.token for one in growth.scored]
        return choice

    async def _merged(self) -> AsyncIterator[tuple[int, Growth]]:
        """The growth of all replies in the order in which it comes. Raises ApiError."""
        queue: asyncio.Queue[tuple[int, Growth] | ApiError | None] = asyncio.Queue()

        async def pump(index: int, reply: Reply) -> None:
            try:
                async for growth in reply.grow():
                    queue.put_nowait((index, growth))
                queue.put_nowait(None)
            except ApiError as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(pump(index, reply)) for index, reply in enumerate(self._replies)]
        try:
            running = len(tasks)
            while running:
                item = await queue.get()
                if isinstance(item, ApiError):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
