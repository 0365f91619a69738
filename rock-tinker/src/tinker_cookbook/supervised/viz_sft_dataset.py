"""Show what a file of conversations becomes: tokens coloured by loss weight."""

from __future__ import annotations

import chz

from tinker_cookbook import model_info, renderers, tokenizer_utils
from tinker_cookbook.display import colorize_example
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised.data import conversation_from_row, conversation_to_datum
from tinker_cookbook.utils.file_utils import read_jsonl


@chz.chz
class Config:
    """``dataset_path``: JSONL with messages."""

    model_name: str
    dataset_path: str
    renderer_name: str | None = None
    max_length: int | None = None
    train_on_what: TrainOnWhat = TrainOnWhat.ALL_ASSISTANT_MESSAGES
    count: int = 3


def run(cfg: Config) -> None:
    """Print the first conversations."""
    tokenizer = tokenizer_utils.get_tokenizer(cfg.model_name)
    name = cfg.renderer_name or model_info.get_recommended_renderer_name(cfg.model_name)
    renderer = renderers.get_renderer(name, tokenizer)
    for row in read_jsonl(cfg.dataset_path)[: cfg.count]:
        datum = conversation_to_datum(conversation_from_row(row), renderer, cfg.max_length, cfg.train_on_what)
        print(colorize_example(datum, tokenizer), end="\n\n")


if __name__ == "__main__":
    chz.nested_entrypoint(run)
