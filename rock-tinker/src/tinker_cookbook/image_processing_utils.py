"""Image processors and small image helpers."""

from __future__ import annotations

import base64
import functools
import io
from typing import Any


@functools.cache
def get_image_processor(model_name: str) -> Any:
    """The Hugging Face image processor of a vision model (cached)."""
    from transformers import AutoImageProcessor

    processors: Any = AutoImageProcessor
    return processors.from_pretrained(model_name.split(":")[0], use_fast=True)


def resize_image(image: Any, max_size: int) -> Any:
    """The image scaled down so that its longer side is at most ``max_size`` pixels; smaller ones stay."""
    longer = max(image.size)
    if longer <= max_size:
        return image
    scale = max_size / longer
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))


def image_to_data_uri(image: Any) -> str:
    """A PIL image as a PNG data URI."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
