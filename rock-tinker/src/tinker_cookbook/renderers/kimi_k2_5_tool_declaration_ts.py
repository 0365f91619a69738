"""Tools as TypeScript declarations, as Kimi K2.5 and later read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinker_cookbook.renderers.tool_schemas import kimi_declaration


def encode_tools_to_typescript_style(tools: Sequence[dict[str, Any]]) -> str:
    """Declarations of tools given in OpenAI's form (``{"type": "function", "function": ...}``); others are left out."""
    functions: list[Any] = [tool["function"] for tool in tools if tool.get("type") == "function"]
    return kimi_declaration(functions) if functions else ""
