"""Renderer classes of Nemotron 3; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    Nemotron3DisableThinkingRenderer,
    Nemotron3LowThinkingRenderer,
    Nemotron3PreserveThinkingRenderer,
    Nemotron3Renderer,
    Nemotron3UltraDisableThinkingRenderer,
    Nemotron3UltraMediumThinkingRenderer,
    Nemotron3UltraPreserveThinkingRenderer,
    Nemotron3UltraRenderer,
)

__all__ = [
    "Nemotron3DisableThinkingRenderer",
    "Nemotron3LowThinkingRenderer",
    "Nemotron3PreserveThinkingRenderer",
    "Nemotron3Renderer",
    "Nemotron3UltraDisableThinkingRenderer",
    "Nemotron3UltraMediumThinkingRenderer",
    "Nemotron3UltraPreserveThinkingRenderer",
    "Nemotron3UltraRenderer",
]
