"""Upload a model folder to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from tinker_cookbook.exceptions import WeightsNotFoundError
from tinker_cookbook.weights.model_card import ModelCardConfig, generate_model_card


def publish_to_hf_hub(
    *,
    model_path: str,
    repo_id: str,
    private: bool = True,
    token: str | None = None,
    model_card: ModelCardConfig | None = None,
) -> str:
    """Create the repository if needed and upload the folder. Returns its URL.

    ``model_card`` is written as ``README.md``, unless the folder has one.

    Raises:
        WeightsNotFoundError: the folder does not exist.
    """
    from huggingface_hub import HfApi

    folder = Path(model_path)
    if not folder.is_dir():
        raise WeightsNotFoundError(f"model_path={model_path!r} does not exist or is no folder")
    if model_card is not None and not (folder / "README.md").exists():
        card = generate_model_card(config=model_card, repo_id=repo_id, model_path=model_path)
        card.save(folder / "README.md")
    api = HfApi(token=token)
    url = api.create_repo(repo_id, private=private, exist_ok=True)
    api.upload_folder(folder_path=str(folder), repo_id=repo_id)
    return str(url)
