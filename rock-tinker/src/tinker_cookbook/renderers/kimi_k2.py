"""Renderer classes of Kimi K2; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    KimiK2Renderer,
)

__all__ = [
    "KimiK2Renderer",
]
