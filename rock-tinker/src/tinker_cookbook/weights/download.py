"""Fetch the files of a checkpoint."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import httpx

import tinker
from tinker._download import download_checkpoint
from tinker_cookbook.exceptions import WeightsDownloadError


def download(*, tinker_path: str, output_dir: str, base_url: str | None = None) -> str:
    """Write the adapter (or model) files of a checkpoint to a folder, beside what it holds. Returns the folder.

    External and sampler checkpoints are fetched as they are; a training checkpoint is exported to a temporary external
    one first.

    Raises:
        WeightsDownloadError: no path of a checkpoint, or one that cannot be exported or fetched.
    """
    folder = Path(output_dir)
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as staging:
            files = download_checkpoint(tinker_path, Path(staging) / "files", base_url=base_url).destination
            shutil.copytree(files, folder, dirs_exist_ok=True, copy_function=shutil.move)
    except (tinker.TinkerError, httpx.HTTPError, OSError, ValueError) as error:
        if new:
            with contextlib.suppress(OSError):  # something is in it, or it was never made
                folder.rmdir()
        raise WeightsDownloadError(f"{tinker_path} cannot be downloaded: {error}") from error
    return str(folder)
