"""The table of a sweep that has been run: ``sweep_dir=...``."""

from __future__ import annotations

from pathlib import Path

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.chat_sl.sweep import results


@chz.chz
class Config:
    """``require_complete``: without runs that have no final checkpoint."""

    sweep_dir: str
    metric: str = "train_mean_nll"
    higher_is_better: bool = False
    require_complete: bool = True


def main(config: Config) -> None:
    """Print the table."""
    if not Path(config.sweep_dir).expanduser().is_dir():
        raise ConfigurationError(f"sweep_dir={config.sweep_dir!r} is no folder")
    rows = results.collect(config.sweep_dir, require_complete=config.require_complete)
    print(results.table(rows, config.metric, config.higher_is_better))


if __name__ == "__main__":
    entry.run(main)
