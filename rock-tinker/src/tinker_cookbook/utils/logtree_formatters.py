"""How conversations look in a report."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.renderers.messages import Content, Message, ensure_list, message_to_jsonable

CONVERSATION_CSS = """
.lt-conversation {margin:.2rem 0}
.lt-message{border-radius:4px;margin:.2rem 0;padding:.2rem .5rem;background:var(--lt-bg,#f3f3f3)}
.lt-message-role{font-weight:600}.lt-message-content{white-space:pre-wrap;overflow-wrap:anywhere}
.lt-message-user{background:#e8f0fb}.lt-message-assistant{background:#eaf7ea}.lt-message-tool{background:#fbf3e1}
.lt-thinking-part{color:#666}.lt-tool-call-part{border-left:3px solid #7aa6da;padding-left:.4rem}
.lt-unparsed-tool-call-part{border-left:3px solid #c33;padding-left:.4rem}.lt-error{color:#c33}
"""


@dataclass
class ConversationFormatter:
    """Messages as coloured blocks."""

    messages: Sequence[Message]

    def to_html(self) -> str:
        """HTML fragment."""
        blocks = "".join(_message_html(message) for message in self.messages)
        return f'<div class="lt-conversation">{blocks}</div>'

    def to_data(self) -> dict[str, Any]:
        """JSON form."""
        return {"type": "conversation", "messages": [message_to_jsonable(message) for message in self.messages]}

    def get_css(self) -> str:
        """Style rules."""
        return CONVERSATION_CSS


def _message_html(message: Message) -> str:
    parts = [_content_html(message["content"])]
    for call in message.get("tool_calls") or []:
        parts.append(_block("tool-call", f"{call.function.name}({call.function.arguments})"))
    for unparsed in message.get("unparsed_tool_calls") or []:
        error = f'<div class="lt-error">{html.escape(unparsed.error)}</div>'
        parts.append(_block("unparsed-tool-call", unparsed.raw_text, error))
    role = html.escape(message["role"])
    return (
        f'<div class="lt-message lt-message-{role}"><span class="lt-message-role">{role}:</span>'
        f'<div class="lt-message-content">{"".join(parts)}</div></div>'
    )


def _content_html(content: Content) -> str:
    shown = []
    for part in ensure_list(content):
        if part["type"] == "text":
            shown.append(f'<span class="lt-text-part">{html.escape(part["text"])}</span>')
        elif part["type"] == "thinking":
            body = f"<pre>{html.escape(part['thinking'])}</pre>"
            shown.append(f'<details class="lt-thinking-part"><summary>Thinking</summary>{body}</details>')
        else:
            shown.append(f'<span class="lt-{part["type"]}-part">[{part["type"]}]</span>')
    return "\n".join(shown)


def _block(kind: str, text: str, after: str = "") -> str:
    return f'<div class="lt-{kind}-part"><code>{html.escape(text)}</code>{after}</div>'
