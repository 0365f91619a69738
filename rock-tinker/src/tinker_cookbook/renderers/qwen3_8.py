"""Renderer classes of Qwen3.8; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.families import QWEN3_8_EFFORTS as REASONING_EFFORT_INSTRUCTIONS
from tinker_cookbook.renderers.named import (
    Qwen3_8DisableThinkingRenderer,
    Qwen3_8Renderer,
)

__all__ = [
    "REASONING_EFFORT_INSTRUCTIONS",
    "Qwen3_8DisableThinkingRenderer",
    "Qwen3_8Renderer",
]
