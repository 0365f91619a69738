"""Renderer classes of Llama 3; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    Llama3Renderer,
)

__all__ = [
    "Llama3Renderer",
]
