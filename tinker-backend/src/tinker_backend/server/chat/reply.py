"""A request of either door on its way: the prompt, and one growing ``Answer`` for each choice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import BadRequest
from ...runtime.roles import SampleRequest, SampleResult
from .answer import Answer, Finish
from .conversation import Conversation, Settings
from .generation import Target, generate, sample_request, scored
from .openai_answers import Scored
from .template import knows_tools, render
from .tool_calls import HERMES, Part, ToolStyle, style_of

if TYPE_CHECKING:
    from ..backend import Backend


@dataclass(frozen=True)
class Growth:
    """What one choice gained. ``finish`` is set once, at its end."""

    index: int
    parts: list[Part]
    scored: list[Scored]
    finish: Finish | None = None


class Reply:
    """One sampled request: what goes in, and the answers that come out."""

    def __init__(
        self,
        backend: Backend,
        target: Target,
        prompt: list[int],
        settings: Settings,
        style: ToolStyle | None,
        opened: str,
    ) -> None:
        self._backend = backend
        self.target = target
        self.prompt = prompt
        self.request: SampleRequest = sample_request(backend, target, prompt, settings)
        self.answers = [Answer(target.tokenizer, settings.stop, style, opened) for _ in range(settings.count)]
        self.scored: list[list[Scored]] = [[] for _ in self.answers]
        self.finishes: list[Finish] = ["length"] * settings.count
        self.cached = 0

    @classmethod
    def to_conversation(cls, backend: Backend, target: Target, conversation: Conversation, settings: Settings) -> Reply:
        """A chat answer. Raises BadRequest, Unavailable."""
        tokenizer = target.tokenizer
        style: ToolStyle | None = None
        opened = ""
        if conversation.visible_tools:
            template = tokenizer.template or ""
            style = style_of(template) if knows_tools(template) else HERMES
            opened = _opening(conversation, style)
            conversation = replace(conversation, prefill=conversation.prefill + opened)
        return cls(backend, target, tokenizer.encode(render(tokenizer, conversation)), settings, style, opened)

    @property
    def completion_tokens(self) -> int:
        """Tokens sampled so far, those that ended an answer included."""
        return sum(len(answer.tokens) for answer in self.answers)

    async def grow(self) -> AsyncIterator[Growth]:
        """The answers' growth as it comes; after the last one everything is in ``answers``. Raises ApiError."""
        result: SampleResult | None = None
        stream = generate(self._backend, self.target, self.request)
        try:
            async for item in stream:
                if isinstance(item, SampleResult):
                    result = item
                    continue
                rows = scored(item)
                self.scored[item.index] += rows
                yield Growth(item.index, self.answers[item.index].feed(item.tokens.tolist()), rows)
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        assert result is not None
        self.cached = result.prompt_cache_hit_tokens
        for index, sequence in enumerate(result.sequences):
            parts, self.finishes[index] = self.answers[index].finish(sequence.stop_reason)
            yield Growth(index, parts, [], self.finishes[index])

    async def finish(self) -> None:
        """Runs to the end. Raises ApiError."""
        async for _ in self.grow():
            pass


def _opening(conversation: Conversation, style: ToolStyle) -> str:
    """How an answer must begin that has to call a tool."""
    choice = conversation.tool_choice
    if choice.mode != "required":
        return ""
    if style.name != HERMES.name:
        raise BadRequest(f"tool_choice: this model writes tool calls as {style.name}; only auto and none work with it")
    name = choice.name or (conversation.tools[0].name if len(conversation.tools) == 1 else None)
    start = f"{style.start}\n"
    return start if name is None else f'{start}{{"name": {json.dumps(name)}, "arguments": '
