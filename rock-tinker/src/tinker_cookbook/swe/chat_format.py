"""From chat messages to prompt tokens: the model's own chat template, with the sampled tokens of earlier turns kept.

A prompt that is rendered afresh each turn need not contain the tokens that were sampled: text that is decoded and
encoded again can split otherwise, and a tool call that went through JSON comes back with other spaces. Training on such
a prompt would score tokens that the policy never saw. So when a request extends an earlier turn (its messages are the
earlier ones, the answer, and more), the new prompt is: the earlier prompt's tokens, the sampled tokens, and the encoding
of only the text that the template adds after them.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tinker_cookbook.swe.errors import RequestRefused, SettingError
from tinker_cookbook.swe.messages import ChatRequest, Message, canonical
from tinker_cookbook.swe.trajectory import Turn

# Stands at the end of an earlier answer while a template renders it; nothing that a model or a tool writes contains it.
_MARK = "\u2402answer-ends-here\u2403"


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    chat_template: Any
    eos_token: str | None
    eos_token_id: int | None

    def apply_chat_template(self, conversation: list[Message], **kwargs: Any) -> Any: ...
    def encode(self, text: str, **kwargs: Any) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str: ...


@dataclass(frozen=True)
class Prompt:
    """A rendered request: template text, tokens, and how many leading tokens are an earlier turn's own."""

    text: str
    tokens: tuple[int, ...]
    reused_tokens: int


class ChatFormat:
    """A model's chat template and tokenizer.

    Args:
        tokenizer: with a chat template.

    Raises:
        SettingError: the tokenizer has no chat template or no end token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.chat_template:
            raise SettingError(
                "the model's tokenizer has no chat template, so an agent cannot talk to it; use an instruct model, "
                "or add chat_template.jinja to the model folder"
            )
        if tokenizer.eos_token_id is None or tokenizer.eos_token is None:
            raise SettingError("the model's tokenizer names no eos_token; set it in tokenizer_config.json")
        self._tokenizer = tokenizer
        self.eos_text: str = tokenizer.eos_token
        self.eos_id: int = tokenizer.eos_token_id

    def prompt(self, request: ChatRequest, turns: Sequence[Turn]) -> Prompt:
        """The prompt of a request; it continues the longest earlier turn that the request extends.

        Raises:
            RequestRefused: the template does not accept these messages.
        """
        text = self._render(request.messages, request.tools)
        parent = _parent(request, turns)
        tail = self._tail(request, parent) if parent else None
        if parent is None or tail is None:
            return Prompt(text, tuple(self._encode(text)), 0)
        kept = parent.prompt_tokens + parent.completion_tokens
        return Prompt(text, kept + tuple(self._encode(tail)), len(kept))

    def completion_text(self, tokens: Sequence[int]) -> str:
        """The text of sampled tokens without the end token."""
        ended = bool(tokens) and tokens[-1] == self.eos_id
        return self._tokenizer.decode(list(tokens[:-1] if ended else tokens), skip_special_tokens=False)

    def _tail(self, request: ChatRequest, parent: Turn) -> str | None:
        """The text after the parent's sampled tokens, or None where the template does not keep the answer as it was."""
        place = len(parent.messages)
        answer: Message = {"role": "assistant", "content": parent.completion_text + _MARK}
        messages = (*request.messages[:place], answer, *request.messages[place + 1 :])
        marked = self._render(messages, request.tools)
        before, mark, after = marked.partition(_MARK)
        # Templates may strip an answer (spaces, thinking) when it has become history. Only spaces may differ.
        expected = parent.prompt_text + parent.completion_text
        if not mark or "".join(before.split()) != "".join(expected.split()):
            return None
        if parent.completion_tokens and parent.completion_tokens[-1] == self.eos_id:
            return after.removeprefix(self.eos_text) if after.startswith(self.eos_text) else None
        return after

    def _render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> str:
        options: dict[str, Any] = {"tools": list(tools)} if tools else {}
        try:
            rendered = self._tokenizer.apply_chat_template(
                [_template_message(item) for item in messages], tokenize=False, add_generation_prompt=True, **options
            )
        except Exception as error:  # a template raises what it likes
            raise RequestRefused(
                400, f"the model's chat template refused these messages: {error}", code="template", param="messages"
            ) from error
        return str(rendered)

    def _encode(self, text: str) -> list[int]:
        # The template writes its own start token, so the tokenizer must not add one.
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _parent(request: ChatRequest, turns: Sequence[Turn]) -> Turn | None:
    """The turn with the longest history that is a prefix of the request's, its answer included."""
    history = request.history
    best: Turn | None = None
    for turn in turns:
        length = len(turn.messages) + 1
        if length > len(history) or (best is not None and len(turn.messages) < len(best.messages)):
            continue
        own = (*(canonical(item) for item in turn.messages), canonical(turn.answer))
        if own == history[:length]:
            best = turn
    return best


def _template_message(message: Message) -> Message:
    """Templates expect the arguments of a tool call as an object, clients send them as JSON text."""
    if not message.get("tool_calls"):
        return message
    message = copy.deepcopy(message)
    for call in message["tool_calls"]:
        arguments = call["function"].get("arguments")
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):
                call["function"]["arguments"] = json.loads(arguments)
    return message
