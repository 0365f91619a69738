"""Fetch the files of a checkpoint."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import httpx

import tinker
from tinker._download import download_checkpoint
from tinker_cookbook.exceptions import WeightsDownloadError

_EXPORT_NAME, _EXPORT_TTL_SECONDS = "download", 3600


def download(*, tinker_path: str, output_dir: str, base_url: str | None = None) -> str:
    """Write the adapter (or model) files of a checkpoint to a folder. Returns the folder.

    External and sampler checkpoints are fetched as they are; a training checkpoint is exported to a temporary external
    one first.

    Raises:
        WeightsDownloadError: the checkpoint cannot be exported or fetched.
    """
    folder = Path(output_dir)
    rest = tinker.RestClient(base_url=base_url)
    try:
        if "/external_weights/" in tinker_path:
            return str(_fetch(dict(rest.get_external_weights_urls(tinker_path).result().urls), folder))
        if "/sampler_weights/" in tinker_path:
            return str(_fetch_sampler(tinker_path, folder, base_url))
        with tinker.ServiceClient(base_url=base_url, display_name="download") as service_client:
            client = service_client.create_training_client_from_state(tinker_path).result()
            exported = client.save_weights_external(_EXPORT_NAME, ttl_seconds=_EXPORT_TTL_SECONDS).result().path
        try:
            return str(_fetch(dict(rest.get_external_weights_urls(exported).result().urls), folder))
        finally:
            rest.delete_checkpoint_from_tinker_path(exported).result()
    except (tinker.TinkerError, httpx.HTTPError, OSError) as error:
        raise WeightsDownloadError(f"{tinker_path} cannot be downloaded: {error}") from error


def _fetch_sampler(tinker_path: str, folder: Path, base_url: str | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as staging:
        files = download_checkpoint(tinker_path, Path(staging) / "files", base_url=base_url).destination
        shutil.copytree(files, folder, dirs_exist_ok=True)
    return folder


def _fetch(urls: dict[str, str], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, url in urls.items():
        target = (folder / name).resolve()
        if folder.resolve() not in target.parents:
            raise WeightsDownloadError(f"file name {name!r} leaves the folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with httpx.stream("GET", url, timeout=httpx.Timeout(600, connect=30), follow_redirects=True) as response:
            response.raise_for_status()
            with target.open("wb") as file:
                for block in response.iter_bytes(1 << 20):
                    file.write(block)
    return folder
