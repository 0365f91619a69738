"""Named images of the local runtime: a base, layers, and what comes along from the machine."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rock.errors import ConfigError, SandboxStartError
from rock.runtime.local.root import LocalRoot

HOST_IMAGES = ("local", "host")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@-]{0,199}")


class ImageBind(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source: str
    target: str


class LocalImage(BaseModel):
    """Content of an image.

    Args:
        base: "host" or "scratch".
        layers: digests in the root's store, topmost first.
        trees: folders of this machine, copy on write at the same path.
        binds: folders of this machine, read-only.
    """

    model_config = ConfigDict(extra="forbid")

    base: str = "host"
    layers: list[str] = []
    trees: list[str] = []
    binds: list[ImageBind] = []
    env: dict[str, str] = {}
    workdir: str = "/"


class ImageStore:
    """Image files `images/<name>.json` of a LocalRoot."""

    def __init__(self, root: LocalRoot) -> None:
        self.root = root
        self.folder = root.folder / "images"
        self.folder.mkdir(exist_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ConfigError(f"image name {name!r}: use letters, digits and _ . / : @ -")
        return self.folder / (name.replace("/", "%2F") + ".json")

    def save(self, name: str, image: LocalImage) -> None:
        """Stores or replaces an image."""
        path = self._path(name)
        draft = path.with_suffix(f".draft-{os.getpid()}")
        draft.write_text(image.model_dump_json(indent=2))
        draft.replace(path)

    def load(self, name: str) -> LocalImage:
        """The image of that name; "local" and "host" are this machine's system folders.

        Raises:
            SandboxStartError: there is none.
        """
        path = self._path(name)
        if path.is_file():
            try:
                return LocalImage.model_validate(json.loads(path.read_text()))
            except (ValidationError, ValueError) as error:
                raise SandboxStartError(f"image {name!r} has a damaged file {path}: {error}") from error
        if name in HOST_IMAGES:
            return LocalImage()
        known = ", ".join([*HOST_IMAGES, *self.names()])
        raise SandboxStartError(f"image {name!r} is not known to the local runtime; it has: {known}")

    def names(self) -> list[str]:
        return sorted(path.stem.replace("%2F", "/") for path in self.folder.glob("*.json"))

    def remove(self, name: str) -> None:
        """Forgets an image; its layers stay as long as another image uses them."""
        self._path(name).unlink(missing_ok=True)
        self.drop_unused_layers()

    def drop_unused_layers(self) -> list[str]:
        """Removes layers that no image names and no running sandbox uses. Returns their digests."""
        used = {digest for name in self.names() for digest in self.load(name).layers}
        removed = []
        for layer in (self.root.folder / "layers").iterdir():
            if layer.name not in used and not layer.name.startswith(".") and not self.root.layer_in_use(layer.name):
                self.root.remove_layer(layer.name)
                removed.append(layer.name)
        return removed
