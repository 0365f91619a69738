"""Renderer classes of GLM 5.3; the table ``families`` says what they draw."""

from __future__ import annotations

from tinker_cookbook.renderers.named import (
    Glm5_3HighReasoningRenderer,
    Glm5_3LowReasoningRenderer,
    Glm5_3Renderer,
)

__all__ = [
    "Glm5_3HighReasoningRenderer",
    "Glm5_3LowReasoningRenderer",
    "Glm5_3Renderer",
]
