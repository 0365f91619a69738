"""How conversations look in a report."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.renderers.messages import Message, format_content_as_string, message_to_jsonable


@dataclass
class ConversationFormatter:
    """Messages as coloured blocks."""

    messages: Sequence[Message]

    def to_html(self) -> str:
        """HTML fragment."""
        blocks = []
        for message in self.messages:
            text = format_content_as_string(message["content"])
            for call in message.get("tool_calls") or []:
                text += f"\n→ {call.function.name}({call.function.arguments})"
            role = html.escape(message["role"])
            blocks.append(f'<div class="msg {role}"><b>{role}</b><div class="text">{html.escape(text)}</div></div>')
        return "".join(blocks)

    def to_data(self) -> dict[str, Any]:
        """JSON form."""
        return {"type": "conversation", "messages": [message_to_jsonable(message) for message in self.messages]}

    def get_css(self) -> str:
        """Style rules."""
        return (
            ".msg{border-radius:4px;margin:.2rem 0;padding:.2rem .5rem;background:#f3f3f3}"
            ".msg.user{background:#e8f0fb}.msg.assistant{background:#eaf7ea}.msg.tool{background:#fbf3e1}"
        )
