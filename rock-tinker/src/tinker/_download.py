"""Fetching the files of a checkpoint."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin, urlsplit

import httpx

from ._errors import BadRequestError, TinkerError
from ._futures import start
from ._holder import shared_holder
from ._rest import RestClient
from ._service import ServiceClient
from .types import ParsedCheckpointTinkerPath

_TEMPORARY_TTL_SECONDS = 3600
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_CHUNK_BYTES = 1 << 20

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all


@dataclass(frozen=True)
class Download:
    """What was written."""

    checkpoint_path: str
    destination: Path
    file_size_bytes: int


def folder_name(tinker_path: str) -> str:
    """The folder that a checkpoint is downloaded into by default."""
    return tinker_path.removeprefix("tinker://").replace("/", "_")


def download_checkpoint(
    tinker_path: str,
    destination: Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> Download:
    """Write the files of a checkpoint into the folder ``destination``, all or none.

    External checkpoints are fetched as they are, and so are sampler checkpoints of servers that give their files. Others
    are first turned into a temporary external one by a session of their own.

    Raises:
        TinkerError: The destination exists (without ``force``), a file name leaves the folder, or a transfer fails.
        ValueError: ``tinker_path`` is no checkpoint path.
    """
    parsed = ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
    if destination.exists() and not force:
        raise TinkerError(f"{destination} exists already; remove it, choose another folder, or pass --force")
    if destination.exists() and not destination.is_dir():
        raise TinkerError(f"{destination} exists and is not a folder")
    urls = _sampler_files(parsed, base_url) if parsed.checkpoint_type == "sampler" else None
    if urls is not None:
        return Download(tinker_path, destination, _fetch_all(urls, destination, progress, base_url))
    with _external(parsed, base_url) as external_path:
        urls = RestClient(base_url=base_url).get_external_weights_urls(external_path).result().urls
        if not urls:
            raise TinkerError(f"the server lists no files for {external_path}")
        size = _fetch_all(urls, destination, progress, base_url)
    return Download(tinker_path, destination, size)


def _sampler_files(parsed: ParsedCheckpointTinkerPath, base_url: str | None) -> dict[str, str] | None:
    """Links to the files of a sampler checkpoint; None where the server gives them for external checkpoints only."""
    try:
        return RestClient(base_url=base_url)._file_urls(parsed).result().urls or None
    except BadRequestError:
        return None


@contextmanager
def _external(parsed: ParsedCheckpointTinkerPath, base_url: str | None) -> Iterator[str]:
    if parsed.checkpoint_type == "external":
        yield parsed.tinker_path
        return
    with ServiceClient(base_url=base_url, display_name="checkpoint download") as service:
        training = service.create_training_client_from_state(parsed.tinker_path).result()
        saved = training.save_weights_external("download", ttl_seconds=_TEMPORARY_TTL_SECONDS).result()
        try:
            yield saved.path
        finally:
            RestClient(base_url=base_url).delete_checkpoint_from_tinker_path(saved.path).result()


def safe_relative_path(name: str) -> PurePosixPath:
    """A file name that the server gave, if it stays inside a folder; TinkerError otherwise."""
    path = PurePosixPath(name)
    parts = path.parts
    if path.is_absolute() or not parts or ".." in parts or ":" in parts[0] or "\\" in name or "\0" in name:
        raise TinkerError(
            f"the server sent the file name {name!r}, which leaves the download folder; nothing was written"
        )
    return path


def _fetch_all(urls: dict[str, str], destination: Path, progress: Progress | None, base_url: str | None) -> int:
    """Fetch into a temporary folder beside the destination and put it in place when complete."""
    files = {safe_relative_path(name): url for name, url in urls.items()}
    destination.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{destination.name[:64]}-", dir=destination.parent))
    try:
        size = 0
        with httpx.Client(timeout=_TIMEOUT, follow_redirects=True) as client:
            for name, url in files.items():
                size += _fetch(client, _addressed(url, base_url), staging / name, str(name), progress)
        _put_in_place(staging, destination)
        return size
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fetch(
    client: httpx.Client, address: tuple[str, dict[str, str]], target: Path, name: str, progress: Progress | None
) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    url, headers = address
    written = 0
    try:
        with client.stream("GET", url, headers=headers) as response:
            if response.status_code >= 400:
                raise TinkerError(f"{name}: the download address answered {response.status_code}")
            encoded = "content-encoding" in response.headers
            length = response.headers.get("content-length")
            expected = int(length) if length and not encoded else None
            with target.open("xb") as file:
                for block in response.iter_bytes(_CHUNK_BYTES):
                    file.write(block)
                    written += len(block)
                    if progress is not None:
                        progress(name, written, expected)
                file.flush()
                os.fsync(file.fileno())
    except httpx.HTTPError as error:
        raise TinkerError(f"{name}: the download broke off: {error or type(error).__name__}") from error
    except OSError as error:
        raise TinkerError(f"{name}: cannot be written to {target.parent}: {error.strerror}") from error
    return written


def _addressed(url: str, base_url: str | None) -> tuple[str, dict[str, str]]:
    """The full address; the credential goes along to the Tinker server itself and to nobody else."""
    holder = shared_holder(base_url, None)
    url = urljoin(f"{holder.base_url}/", url)
    theirs, ours = urlsplit(url), urlsplit(holder.base_url)
    if theirs.scheme not in ("http", "https"):
        raise TinkerError(f"the server sent a download address that is not http: {url}")
    if (theirs.scheme, theirs.netloc) != (ours.scheme, ours.netloc):
        return url, {}
    return url, {"X-API-Key": start(holder.credential.token()).result(timeout=60)}


def _put_in_place(staging: Path, destination: Path) -> None:
    os.chmod(staging, 0o755)  # mkdtemp made it private
    old = None
    if destination.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{destination.name[:64]}-old-", dir=destination.parent))
        os.replace(destination, old / "content")
    os.replace(staging, destination)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
