"""``User: ...`` / ``Assistant: ...``: a chat form for every tokenizer, meant for base models."""

from __future__ import annotations

from tinker_cookbook.renderers.base import RenderContext, RenderedMessage, Renderer, text_chunk
from tinker_cookbook.renderers.messages import Message, ToolSpec, ensure_text
from tinker_cookbook.renderers.parsing import ParseTermination
from tinker_cookbook.renderers.pieces import Markup, Piece, PieceEncoder, plain
from tinker_cookbook.renderers.reading import with_calls
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
        pieces: list[Piece] = [f" {text}"]
        if message.get("tool_calls"):
            pieces += [plain(piece) for piece in self._tools.calls(message["tool_calls"], text)]
        return RenderedMessage(
            header=text_chunk(self._encoder.encode([f"{role.capitalize()}:"])),
            output=[text_chunk(self._encoder.encode([*pieces, "\n\n"]))],
            stop_overlap=text_chunk(self._encoder.encode(["User:"])) if role == "assistant" else None,
        )

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        tokens, termination = list(response), ParseTermination.MALFORMED
        if tokens and tokens[-1] == self.tokenizer.eos_token_id:
            tokens, termination = tokens[:-1], ParseTermination.EOS
        text = str(self.tokenizer.decode(tokens))
        text, *rest = text.split(_STOP)
        if rest:
            termination = ParseTermination.STOP_SEQUENCE if len(rest) == 1 else ParseTermination.MALFORMED
        return self._message(text), termination

    def _message(self, text: str) -> Message:
        """Text with the calls in it taken out. White space around it belongs to the format, which writes it again."""
        content, calls = self._tools.parse(text)
        if calls and not isinstance(content, str):
            text = "".join(part["text"] for part in content if part["type"] == "text")
        return with_calls(Message(role="assistant", content=text.strip()), calls)

    def streaming_parser(self) -> StreamingParser:
        return StreamingParser(self.tokenizer, None, lambda tokens: self.parse_response(tokens)[0])

    def create_conversation_prefix_with_tools(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        return self._tools.declare(tools, system_prompt)
