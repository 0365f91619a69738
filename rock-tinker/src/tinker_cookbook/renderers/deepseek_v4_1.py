"""Renderer classes of DeepSeek V4.1; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    DeepSeekV4_1DisableThinkingRenderer,
    DeepSeekV4_1LowReasoningRenderer,
    DeepSeekV4_1MaxReasoningRenderer,
    DeepSeekV4_1Renderer,
)

__all__ = [
    "DeepSeekV4_1DisableThinkingRenderer",
    "DeepSeekV4_1LowReasoningRenderer",
    "DeepSeekV4_1MaxReasoningRenderer",
    "DeepSeekV4_1Renderer",
]
