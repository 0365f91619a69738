"""Folders of files, local or behind fsspec, with one small interface."""

from __future__ import annotations

import contextlib
import os
import posixpath
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.stores.async_twins import in_thread

Self = TypeVar("Self")


@dataclass(frozen=True)
class StorageStat:
    """Size in bytes and time of the last change in seconds since the epoch."""

    size: int
    mtime: float | None


def storage_join(*parts: str) -> str:
    """Path inside a storage; ``.`` and ``..`` are resolved."""
    joined = "/".join(part.strip("/") for part in parts if part.strip("/"))
    return posixpath.normpath(joined) if joined else ""


@runtime_checkable
class Storage(Protocol):
    """Files under one root; paths are relative and use ``/``."""

    def url(self, path: str = "") -> str:
        """Address of the root or of a path in it."""
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

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        """``length`` bytes from ``offset`` on, or all of them; fewer at the end of the file."""
        ...

    def list_dir(self, prefix: str = "") -> list[str]:
        """Names in a folder, sorted; empty without it."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file if it is there."""
        ...

    def remove_dir(self, path: str) -> None:
        """Delete a folder if it is there and empty."""
        ...

    def flush(self) -> None:
        """Write out what is buffered."""
        ...

    def __enter__(self: Self) -> Self: ...

    def __exit__(self, *error: object) -> None:
        """``flush``."""
        ...


@runtime_checkable
class AsyncStorage(Protocol):
    """The same as coroutines. Both storages of this module have both interfaces."""

    async def aread(self, path: str) -> bytes:
        """``Storage.read``."""
        ...

    async def awrite(self, path: str, data: bytes) -> None:
        """``Storage.write``."""
        ...

    async def aappend(self, path: str, data: bytes) -> None:
        """``Storage.append``."""
        ...

    async def aexists(self, path: str) -> bool:
        """``Storage.exists``."""
        ...

    async def astat(self, path: str) -> StorageStat | None:
        """``Storage.stat``."""
        ...

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        """``Storage.read_range``."""
        ...

    async def alist_dir(self, prefix: str = "") -> list[str]:
        """``Storage.list_dir``."""
        ...

    async def aremove(self, path: str) -> None:
        """``Storage.remove``."""
        ...

    async def aremove_dir(self, path: str) -> None:
        """``Storage.remove_dir``."""
        ...

    async def __aenter__(self: Self) -> Self: ...

    async def __aexit__(self, *error: object) -> None:
        """``Storage.flush``."""
        ...


class _Twins:
    """Coroutines and ``with`` for a storage."""

    aread = in_thread(Storage.read)
    awrite = in_thread(Storage.write)
    aappend = in_thread(Storage.append)
    aexists = in_thread(Storage.exists)
    astat = in_thread(Storage.stat)
    aread_range = in_thread(Storage.read_range)
    alist_dir = in_thread(Storage.list_dir)
    aremove = in_thread(Storage.remove)
    aremove_dir = in_thread(Storage.remove_dir)

    def flush(self) -> None:
        """Nothing is buffered."""
        return None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.flush()


class LocalStorage(_Twins):
    """A folder on this machine, made unless ``mkdir`` is false."""

    def __init__(self, root: str | Path, *, mkdir: bool = True) -> None:
        self._root = Path(root).expanduser().resolve()
        if mkdir:
            self._root.mkdir(parents=True, exist_ok=True)

    @property
    def root(self) -> Path:
        """The folder."""
        return self._root

    def url(self, path: str = "") -> str:
        return f"file://{self._path(path)}"

    def _path(self, path: str) -> Path:
        full = (self._root / path).resolve()
        if full != self._root and self._root not in full.parents:
            raise ConfigurationError(f"path {path!r} escapes storage root {self._root}")
        return full

    def read(self, path: str) -> bytes:
        return self._path(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        target = self._path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
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

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        with self._path(path).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if length is None else max(length, 0))

    def list_dir(self, prefix: str = "") -> list[str]:
        folder = self._path(prefix)
        return sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []

    def remove(self, path: str) -> None:
        self._path(path).unlink(missing_ok=True)

    def remove_dir(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._path(path).rmdir()


class FsspecStorage(_Twins):
    """A folder of a file system of fsspec, given as an object or by the name of its protocol with its options.

    Appending rewrites the file.
    """

    def __init__(self, fs: Any, root: str = "", **fs_kwargs: Any) -> None:
        self._fs = _fsspec().filesystem(fs, **fs_kwargs) if isinstance(fs, str) else fs
        self._root = root.rstrip("/")

    def url(self, path: str = "") -> str:
        return str(self._fs.unstrip_protocol(self._path(path)))

    def close(self) -> None:
        """``flush``."""
        self.flush()

    def _path(self, path: str) -> str:
        if ".." in path.split("/"):
            raise ConfigurationError(f"path {path!r} escapes storage root {self._root}")
        return f"{self._root}/{path.strip('/')}".rstrip("/")

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
        changed = found.get("mtime") or found.get("created") or found.get("LastModified")
        seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed
        return StorageStat(int(found.get("size") or 0), None if seconds is None else float(seconds))

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        end = None if length is None else offset + max(length, 0)
        return bytes(self._fs.cat_file(self._path(path), start=offset, end=end))

    def list_dir(self, prefix: str = "") -> list[str]:
        full = self._path(prefix)
        if not self._fs.isdir(full):
            return []
        return sorted(_names(self._fs.ls(full, detail=False)))

    def remove(self, path: str) -> None:
        if self.exists(path):
            self._fs.rm_file(self._path(path))

    def remove_dir(self, path: str) -> None:
        if self._fs.isdir(self._path(path)) and not self.list_dir(path):
            self._fs.rmdir(self._path(path))


def _names(paths: Iterable[Any]) -> list[str]:
    return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths]


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise ConfigurationError("remote storage needs the package fsspec") from error
    return fsspec


def storage_from_uri(uri: str, **kwargs: Any) -> LocalStorage | FsspecStorage:
    """Storage of a path or URL; ``kwargs`` go to the file system behind a URL."""
    if "://" not in uri or uri.startswith("file://"):
        return LocalStorage(uri.removeprefix("file://"))
    fs, root = _fsspec().core.url_to_fs(uri, **kwargs)
    return FsspecStorage(fs, root)
