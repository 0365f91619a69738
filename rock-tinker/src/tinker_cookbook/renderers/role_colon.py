"""``User: ...`` / ``Assistant: ...``: a chat form for every tokenizer, meant for base models."""

from __future__ import annotations

from tinker_cookbook.renderers.base import RenderContext, RenderedMessage, Renderer, text_chunk
from tinker_cookbook.renderers.messages import Message, ToolCall, ToolSpec, UnparsedToolCall, ensure_text
from tinker_cookbook.renderers.parsing import ParseTermination
from tinker_cookbook.renderers.pieces import Markup, PieceEncoder
from tinker_cookbook.renderers.streaming import StreamingParser
from tinker_cookbook.renderers.tool_formats import JsonTools
from tinker_cookbook.tokenizer_utils import Tokenizer

_STOP = "\n\nUser:"


class RoleColonRenderer(Renderer):
    """Plain text with role names; stops at the string before the next user turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._encoder = PieceEncoder(tokenizer)
        self._tools = JsonTools()

    @property
    def has_extension_property(self) -> bool:
        return True

    @property
    def _bos_tokens(self) -> list[int]:
        bos = getattr(self.tokenizer, "bos_token", None)
        return self._encoder.encode([Markup(bos)]) if bos else []

    def get_stop_sequences(self) -> list[str]:
        return [_STOP]

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        role, text = message["role"], ensure_text(message["content"])
        if message.get("tool_calls"):
            text += self._tools.calls(message["tool_calls"], text)
        body = f" {text}\n\n"
        return RenderedMessage(
            header=text_chunk(self._encoder.encode([f"{role.capitalize()}:"])),
            output=[text_chunk(self._encoder.encode([body]))],
            stop_overlap=text_chunk(self._encoder.encode(["User:"])) if role == "assistant" else None,
        )

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        tokens, termination = list(response), ParseTermination.MALFORMED
        if tokens and tokens[-1] == self.tokenizer.eos_token_id:
            tokens, termination = tokens[:-1], ParseTermination.EOS
        text = str(self.tokenizer.decode(tokens))
        if _STOP in text:
            text, rest = text.split(_STOP, 1)
            termination = ParseTermination.MALFORMED if rest.strip() else ParseTermination.STOP_SEQUENCE
        text, calls = self._tools.parse(text.strip())
        message = Message(role="assistant", content=text.strip())
        parsed = [call for call in calls if isinstance(call, ToolCall)]
        unparsed = [call for call in calls if isinstance(call, UnparsedToolCall)]
        if parsed:
            message["tool_calls"] = parsed
        if unparsed:
            message["unparsed_tool_calls"] = unparsed
        return message, termination

    def streaming_parser(self) -> StreamingParser:
        return StreamingParser(self.tokenizer, None, lambda tokens: self.parse_response(tokens)[0])

    def create_conversation_prefix_with_tools(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        return self._tools.declare(tools, system_prompt)
