"""Images of a conversation as chunks."""

from __future__ import annotations

import base64
import io
import urllib.request
from typing import Any, Protocol

import tinker
from tinker_cookbook.exceptions import RendererError


class ImageProcessorProtocol(Protocol):
    """What is needed of a Hugging Face image processor: the number of patches of an image."""

    merge_size: int
    patch_size: int

    def get_number_of_image_patches(self, height: int, width: int, images_kwargs: dict[str, Any] | None = None) -> int:
        """Patches before merging."""
        ...


def image_to_chunk(image_or_str: Any, image_processor: ImageProcessorProtocol | None) -> tinker.types.ImageChunk:
    """A PIL image, data URI, URL or file path as an image chunk that knows its token count.

    Raises:
        RendererError: no image processor was given.
    """
    if image_processor is None:
        raise RendererError("the conversation holds an image: give get_renderer(..., image_processor=...) of the model")
    from PIL import Image

    image = image_or_str
    if isinstance(image, str):
        if image.startswith("data:"):
            data = base64.b64decode(image.split(",", 1)[1])
        elif image.startswith(("http://", "https://")):
            with urllib.request.urlopen(image, timeout=60) as response:
                data = response.read()
        else:
            with open(image, "rb") as file:
                data = file.read()
        image = Image.open(io.BytesIO(data))
    image = image.convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG")
    patches = image_processor.get_number_of_image_patches(image.height, image.width, images_kwargs={})
    return tinker.types.ImageChunk(
        data=buffer.getvalue(), format="jpeg", expected_tokens=patches // image_processor.merge_size**2
    )
