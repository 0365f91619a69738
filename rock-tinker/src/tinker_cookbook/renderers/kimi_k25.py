"""Renderer classes of Kimi K2.5; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    KimiK25DisableThinkingRenderer,
    KimiK25Renderer,
)

__all__ = [
    "KimiK25DisableThinkingRenderer",
    "KimiK25Renderer",
]
