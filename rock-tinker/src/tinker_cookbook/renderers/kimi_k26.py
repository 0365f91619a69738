"""Renderer classes of Kimi K2.6; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    KimiK26PreserveThinkingRenderer,
)

__all__ = [
    "KimiK26PreserveThinkingRenderer",
]
