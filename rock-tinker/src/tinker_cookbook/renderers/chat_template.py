"""A renderer for every model whose tokenizer carries a chat template.

Headers and endings are found by rendering: what the template writes between two known texts. Only templates that
write each message after the last without changing earlier ones can be trained on; others are refused with an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tinker
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import RenderContext, RenderedMessage, Renderer, TrainOnWhat, text_chunk
from tinker_cookbook.renderers.messages import Message, Role, ToolSpec
from tinker_cookbook.renderers.parsing import ParseTermination, parse_response_for_stop_token, split_thinking
from tinker_cookbook.renderers.pieces import Markup, PieceEncoder
from tinker_cookbook.renderers.reading import with_calls
from tinker_cookbook.renderers.tool_formats import JsonTools
from tinker_cookbook.tokenizer_utils import Tokenizer

if TYPE_CHECKING:
    import torch


class ChatTemplateRenderer(Renderer):
    """Renders with ``tokenizer.apply_chat_template``; stops at the marker which the template writes after an answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        if not getattr(tokenizer, "chat_template", None):
            name = getattr(tokenizer, "name_or_path", type(tokenizer).__name__)
            raise RendererError(f"tokenizer {name!r} has no chat template; use renderer_name='role_colon'")
        self._encoder = PieceEncoder(tokenizer)
        self._stop = self._find_stop()
        self._tools = JsonTools()

    def _render_text(self, messages: Sequence[Message], generate: bool) -> str:
        rows = [self.to_openai_message(message) for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=generate)
        except Exception as error:  # templates raise jinja errors of their own
            raise RendererError(f"the chat template refuses this conversation: {error}") from error
        return str(text)

    def _find_stop(self) -> int:
        probe = "\u241fanswer\u241f"
        messages = [Message(role="user", content="question"), Message(role="assistant", content=probe)]
        tail = self._render_text(messages, generate=False).split(probe)[-1]
        special = set(self.tokenizer.get_added_vocab().values())
        for token in self._encoder.encode([Markup(tail)]):
            if token in special:
                return token
        if self.tokenizer.eos_token_id is not None:
            return int(self.tokenizer.eos_token_id)
        raise RendererError("the chat template ends an answer with no special token, and the tokenizer has no EOS")

    @property
    def has_extension_property(self) -> bool:
        """Checked on a probe conversation: history must be rendered as it was sampled."""
        first = [Message(role="user", content="q"), Message(role="assistant", content="a")]
        sampled = self._render_text(first[:1], generate=True) + "a" + str(self.tokenizer.decode([self._stop]))
        return self._render_text([*first, Message(role="user", content="r")], generate=True).startswith(sampled)

    def get_stop_sequences(self) -> list[int]:
        return [self._stop]

    def _encode(self, text: str) -> list[int]:
        return self._encoder.encode([Markup(text)])

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        """One message on its own; whole conversations are rendered by the template in one go instead."""
        return RenderedMessage(output=[text_chunk(self._encode(self._render_text([message], generate=False)))])

    def build_generation_prompt(
        self, messages: list[Message], role: Role = "assistant", prefill: str | None = None
    ) -> tinker.ModelInput:
        if role != "assistant":
            raise RendererError(f"role={role!r}: a chat template can only start an assistant message")
        tokens = self._encode(self._render_text(messages, generate=True))
        if prefill:
            tokens += self._encoder.encode([prefill])
        return tinker.ModelInput.from_ints(tokens)

    def build_supervised_example(
        self, messages: list[Message], train_on_what: TrainOnWhat = TrainOnWhat.LAST_ASSISTANT_MESSAGE
    ) -> tuple[tinker.ModelInput, torch.Tensor]:
        import torch

        mode = TrainOnWhat(train_on_what)
        self._check_trainable(messages, mode)
        whole = self._render_text(messages, generate=False)
        spans = _trained_spans(self, messages, mode, whole)
        tokens: list[int] = []
        weights: list[float] = []
        position = 0
        for start, end in spans:
            for text, weight in ((whole[position:start], 0.0), (whole[start:end], 1.0)):
                new = self._encode(text)
                tokens += new
                weights += [weight] * len(new)
            position = end
        # Nothing after the last trained token matters: templates like to end with a newline.
        if not spans:
            tokens = self._encode(whole)
            weights = [0.0] * len(tokens)
        return tinker.ModelInput.from_ints(tokens), torch.tensor(weights, dtype=torch.float32)

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        message, termination = parse_response_for_stop_token(response, self.tokenizer, self._stop)
        if not termination.is_clean:
            return message, termination
        reasoning, text = split_thinking(str(message["content"]))
        text = text.lstrip("\n") if reasoning is not None else text
        content, calls = self._tools.parse(text)
        if calls and not isinstance(content, str):
            text = "".join(part["text"] for part in content if part["type"] == "text").rstrip("\n")
        out = Message(role="assistant", content=text)
        if reasoning and reasoning.strip():
            out["content"] = [
                {"type": "thinking", "thinking": reasoning.strip("\n")},
                {"type": "text", "text": text},
            ]
        return with_calls(out, calls), termination

    def create_conversation_prefix_with_tools(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        return self._tools.declare(tools, system_prompt)


def _trained_spans(
    renderer: ChatTemplateRenderer, messages: list[Message], mode: TrainOnWhat, whole: str
) -> list[tuple[int, int]]:
    """Character ranges of ``whole`` that carry loss."""
    if mode is TrainOnWhat.ALL_TOKENS:
        return [(0, len(whole))]
    from tinker_cookbook.renderers.base import _is_trained

    stop = str(renderer.tokenizer.decode([renderer._stop]))
    spans = []
    for ctx, message in zip(renderer._contexts(messages), messages, strict=True):
        if not _is_trained(message, ctx, mode):
            continue
        assistant = message["role"] == "assistant"
        before = renderer._render_text(messages[: ctx.idx], generate=assistant) if ctx.idx else ""
        if not whole.startswith(before):
            raise RendererError(
                f"message {ctx.idx}: the chat template rewrites earlier messages ({before[-40:]!r} is not part of the "
                "whole conversation), so this message cannot be trained here; use build_supervised_examples"
            )
        after = renderer._render_text(messages[: ctx.idx + 1], generate=False)
        end = len(after) if whole.startswith(after) else whole.find(stop, len(before)) + len(stop)
        if assistant and stop in whole[len(before) : end]:
            end = whole.rindex(stop, len(before), end) + len(stop)
        spans.append((len(before), end))
    return spans


def make_chat_template(tokenizer: Tokenizer, image_processor: Any | None = None) -> Renderer:
    """Factory for the registry."""
    return ChatTemplateRenderer(tokenizer)
