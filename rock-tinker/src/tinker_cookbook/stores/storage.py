"""Folders of files, local or behind fsspec, with one small interface."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tinker_cookbook.exceptions import ConfigurationError


@dataclass(frozen=True)
class StorageStat:
    """Size in bytes and time of the last change in seconds since the epoch."""

    size: int
    mtime: float


def storage_join(*parts: str) -> str:
    """Path inside a storage."""
    return "/".join(part.strip("/") for part in parts if part.strip("/"))


class Storage(Protocol):
    """Files under one root; paths are relative and use ``/``."""

    @property
    def url(self) -> str:
        """Where the root is."""
        ...

    def read(self, path: str) -> bytes:
        """A whole file. Raises FileNotFoundError."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Replace a file; readers see the old or the new one, never half of it."""
        ...

    def append(self, path: str, data: bytes) -> None:
        """Add to the end of a file, which need not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        ...

    def stat(self, path: str) -> StorageStat | None:
        """Size and time of a file; None without it."""
        ...

    def read_range(self, path: str, start: int, end: int | None = None) -> bytes:
        """Bytes from ``start`` up to ``end`` (exclusive) or the end."""
        ...

    def list_dir(self, path: str = "") -> list[str]:
        """Names in a folder, sorted; empty without it."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file if it is there."""
        ...

    def remove_dir(self, path: str) -> None:
        """Delete a folder if it is there."""
        ...

    def flush(self) -> None:
        """Write out what is buffered."""
        ...


class _Async:
    """Asynchronous twins, run in a thread."""

    async def aread(self, path: str) -> bytes:
        """``read``."""
        return await asyncio.to_thread(self.read, path)  # type: ignore[attr-defined]

    async def awrite(self, path: str, data: bytes) -> None:
        """``write``."""
        await asyncio.to_thread(self.write, path, data)  # type: ignore[attr-defined]

    async def aappend(self, path: str, data: bytes) -> None:
        """``append``."""
        await asyncio.to_thread(self.append, path, data)  # type: ignore[attr-defined]

    async def aexists(self, path: str) -> bool:
        """``exists``."""
        return await asyncio.to_thread(self.exists, path)  # type: ignore[attr-defined]

    async def alist_dir(self, path: str = "") -> list[str]:
        """``list_dir``."""
        return await asyncio.to_thread(self.list_dir, path)  # type: ignore[attr-defined]


class LocalStorage(_Async):
    """A folder on this machine."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser().resolve()

    @property
    def url(self) -> str:
        return str(self.root)

    def _path(self, path: str) -> Path:
        full = (self.root / path).resolve()
        if full != self.root and self.root not in full.parents:
            raise ConfigurationError(f"path {path!r} leaves the storage root {self.root}")
        return full

    def read(self, path: str) -> bytes:
        return self._path(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        target = self._path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        temporary.write_bytes(data)
        temporary.replace(target)

    def append(self, path: str, data: bytes) -> None:
        target = self._path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(data)

    def exists(self, path: str) -> bool:
        return self._path(path).exists()

    def stat(self, path: str) -> StorageStat | None:
        try:
            found = self._path(path).stat()
        except FileNotFoundError:
            return None
        return StorageStat(found.st_size, found.st_mtime)

    def read_range(self, path: str, start: int, end: int | None = None) -> bytes:
        with self._path(path).open("rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(max(end - start, 0))

    def list_dir(self, path: str = "") -> list[str]:
        folder = self._path(path)
        return sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []

    def remove(self, path: str) -> None:
        self._path(path).unlink(missing_ok=True)

    def remove_dir(self, path: str) -> None:
        shutil.rmtree(self._path(path), ignore_errors=True)

    def flush(self) -> None:
        return None


class FsspecStorage(_Async):
    """Anything that fsspec reaches (s3://, gs://, memory://). Appending rewrites the file."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ConfigurationError(f"{url!r}: remote storage needs the package fsspec") from error
        self._fs, self._root = fsspec.core.url_to_fs(url, **options)
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}".rstrip("/")

    def read(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(self._path(path)))

    def write(self, path: str, data: bytes) -> None:
        full = self._path(path)
        self._fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
        self._fs.pipe_file(full, data)

    def append(self, path: str, data: bytes) -> None:
        self.write(path, (self.read(path) if self.exists(path) else b"") + data)

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def stat(self, path: str) -> StorageStat | None:
        try:
            found = self._fs.info(self._path(path))
        except FileNotFoundError:
            return None
        changed = found.get("mtime") or found.get("created") or found.get("LastModified") or 0.0
        changed = changed.timestamp() if hasattr(changed, "timestamp") else float(changed)
        return StorageStat(int(found.get("size") or 0), changed)

    def read_range(self, path: str, start: int, end: int | None = None) -> bytes:
        return bytes(self._fs.cat_file(self._path(path), start=start, end=end))

    def list_dir(self, path: str = "") -> list[str]:
        full = self._path(path)
        if not self._fs.isdir(full):
            return []
        return sorted(str(item).rstrip("/").rsplit("/", 1)[-1] for item in self._fs.ls(full, detail=False))

    def remove(self, path: str) -> None:
        if self.exists(path):
            self._fs.rm_file(self._path(path))

    def remove_dir(self, path: str) -> None:
        if self.exists(path):
            self._fs.rm(self._path(path), recursive=True)

    def flush(self) -> None:
        return None


def storage_from_uri(uri: str, **options: Any) -> LocalStorage | FsspecStorage:
    """Storage of a path or URL."""
    if "://" in uri and not uri.startswith("file://"):
        return FsspecStorage(uri, **options)
    return LocalStorage(uri.removeprefix("file://"))
