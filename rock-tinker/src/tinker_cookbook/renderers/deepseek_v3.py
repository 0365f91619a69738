"""Renderer classes of DeepSeek V3.1; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    DeepSeekV3DisableThinkingRenderer,
    DeepSeekV3ThinkingRenderer,
)

__all__ = [
    "DeepSeekV3DisableThinkingRenderer",
    "DeepSeekV3ThinkingRenderer",
]
