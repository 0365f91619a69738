"""Image processors and small image helpers."""

from __future__ import annotations

import base64
import functools
import io
import os
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image

if TYPE_CHECKING:
    from transformers import BaseImageProcessor

    ImageProcessor: TypeAlias = BaseImageProcessor
else:
    ImageProcessor = Any

# Models whose image processor is code of their repository, at the commit that is trusted.
_TRUSTED = {
    "moonshotai/Kimi-K2.5": "3367c8d1c68584429fab7faf845a32d5195b6ac1",
    "moonshotai/Kimi-K2.6": "b5aabbfb20227ed42becbf5541dbffd213942c58",
    "nvidia/NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-BF16": "533d66230b6e75518bf32d2d7a7b95a24c3dd517",
}


@functools.cache
def get_image_processor(model_name: str) -> ImageProcessor | None:
    """The Hugging Face image processor of a vision model (cached); None for Inkling models, which have none.

    Code out of a repository runs for the models above at a fixed commit, and for all with ``HF_TRUST_REMOTE_CODE=1``.
    """
    base = model_name.split(":")[0]
    if base.startswith("thinkingmachines/"):
        return None
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    options: dict[str, Any] = {}
    if base in _TRUSTED:
        options = {"trust_remote_code": True, "revision": _TRUSTED[base]}
    elif os.environ.get("HF_TRUST_REMOTE_CODE", "").lower() in ("1", "true", "yes"):
        options = {"trust_remote_code": True}
    load: Any = AutoImageProcessor.from_pretrained
    processor: ImageProcessor = load(base, **options)
    return processor


def resize_image(image: Image.Image, max_size: int) -> Image.Image:
    """The image scaled down so that its longer side is at most ``max_size`` pixels; smaller ones stay."""
    longer = max(image.size)
    if longer <= max_size:
        return image
    scale = max_size / longer
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))


def image_to_data_uri(image: Image.Image | str) -> str:
    """A PIL image, or the file at a path, as a JPEG data URI; a data URI stays as it is.

    Raises:
        ValueError: the address of an image elsewhere, which is not fetched.
    """
    if isinstance(image, str):
        if image.startswith("data:"):
            return image
        if "://" in image and not image.startswith("file://"):
            raise ValueError(f"image {image!r} is not fetched; load it and pass the image")
        with Image.open(image.removeprefix("file://")) as opened:
            return image_to_data_uri(opened)
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, format="JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
