"""Renderer classes of Qwen3.5; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    Qwen3_5DisableThinkingRenderer,
    Qwen3_5Renderer,
)

__all__ = [
    "Qwen3_5DisableThinkingRenderer",
    "Qwen3_5Renderer",
]
