"""Renderer classes of Qwen3; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    Qwen3DisableThinkingRenderer,
    Qwen3InstructRenderer,
    Qwen3Renderer,
    Qwen3VLInstructRenderer,
    Qwen3VLRenderer,
)

__all__ = [
    "Qwen3DisableThinkingRenderer",
    "Qwen3InstructRenderer",
    "Qwen3Renderer",
    "Qwen3VLInstructRenderer",
    "Qwen3VLRenderer",
]
