"""Image classification by fine-tuning: refused, because the engine takes no images yet."""

from __future__ import annotations

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry


@chz.chz
class CLIConfig:
    """Settings that the recipe will take."""

    model_name: str = "Qwen/Qwen3.5-4B"
    dataset: str = "caltech101"
    learning_rate: float = 5e-4
    num_epochs: int = 3
    max_image_size: int = 480
    base_url: str | None = None


def cli_main(cli: CLIConfig) -> None:
    """Refuse with the reason."""
    raise ConfigurationError(
        f"vlm_classifier needs a server with image input; tinker-backend has none, so {cli.model_name} cannot be trained "
        "on images. The renderers qwen3_vl and qwen3_5 already turn images into chunks for servers that have it."
    )


if __name__ == "__main__":
    entry.run(cli_main)
