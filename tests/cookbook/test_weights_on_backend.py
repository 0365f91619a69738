"""Weights of checkpoints, fetched from a backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_backend import RecipeBackend

import tinker
from tinker_cookbook.exceptions import WeightsDownloadError
from tinker_cookbook.weights import download

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_sampler_and_training_checkpoints_are_downloaded_beside_other_files(
    recipe_backend: RecipeBackend, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    service = tinker.ServiceClient(base_url=recipe_backend.url, api_key="tml-local")
    client = service.create_lora_training_client(base_model=str(recipe_backend.model), rank=4).result()
    sampler = client.save_weights_for_sampler("a").result().path
    state = client.save_state("b").result().path
    for path in (sampler, state):
        assert download(tinker_path=path, output_dir=str(tmp_path), base_url=recipe_backend.url) == str(tmp_path)
        files = {file.name for file in tmp_path.iterdir()}
        assert files == {"notes.txt", "adapter_config.json", "adapter_model.safetensors"}
        (tmp_path / "adapter_model.safetensors").unlink()


def test_what_is_no_path_of_a_checkpoint_is_refused(recipe_backend: RecipeBackend, tmp_path: Path) -> None:
    for path in ("nonsense", "tinker://run/nothing/x", "tinker://run/weights/x"):
        with pytest.raises(WeightsDownloadError, match=path):
            download(tinker_path=path, output_dir=str(tmp_path / "new"), base_url=recipe_backend.url)
        with pytest.raises(WeightsDownloadError, match=path):
            download(tinker_path=path, output_dir=str(tmp_path), base_url=recipe_backend.url)
    assert not list(tmp_path.iterdir())
