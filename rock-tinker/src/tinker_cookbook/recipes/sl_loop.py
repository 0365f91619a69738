"""Supervised fine-tuning as one plain loop: the four verbs of the API and nothing else.

python -m tinker_cookbook.recipes.sl_loop model_name=... dataset=example batch_size=16
"""

from __future__ import annotations

import logging

import chz

import tinker
from tinker_cookbook import checkpoint_utils, cli_utils, model_info, renderers
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.chat_sl.chat_datasets import load_conversations
from tinker_cookbook.supervised.common import compute_mean_nll
from tinker_cookbook.supervised.data import conversation_from_row, conversation_to_datum
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import ml_log
from tinker_cookbook.utils.file_utils import read_jsonl

logger = logging.getLogger(__name__)


@chz.chz
class Config:
    """``dataset``: no_robots, example, or a JSONL file."""

    base_url: str | None = None
    log_path: str = cli_utils.runs_path("sl-loop")
    model_name: str = "Qwen/Qwen3.5-9B-Base"
    batch_size: int = 128
    learning_rate: float = 1e-4
    max_length: int = 32768
    train_on_what: renderers.TrainOnWhat = renderers.TrainOnWhat.ALL_ASSISTANT_MESSAGES
    lora_rank: int = 32
    save_every: int = 20
    ttl_seconds: int | None = 604800
    max_steps: int | None = None
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    dataset: str = "no_robots"
    renderer_name: str | None = None


async def main(config: Config) -> None:
    """Train one epoch; go on from the last checkpoint in ``log_path`` if there is one."""
    log = ml_log.setup_logging(config.log_path, config.wandb_project, config.wandb_name, config)
    tokenizer = get_tokenizer(config.model_name)
    name = config.renderer_name or model_info.get_recommended_renderer_name(config.model_name)
    renderer = renderers.get_renderer(name, tokenizer, model_name=config.model_name)
    if config.dataset == "no_robots":
        conversations = load_conversations("HuggingFaceH4/no_robots", "train")
    else:
        path = entry.example_data("conversations.jsonl") if config.dataset == "example" else config.dataset
        conversations = [conversation_from_row(row) for row in read_jsonl(path)]
    total = len(conversations) // config.batch_size
    total = total if config.max_steps is None else min(total, config.max_steps)

    with tinker.ServiceClient(base_url=config.base_url, display_name=config.session_name) as service:
        resume = checkpoint_utils.get_last_checkpoint(config.log_path)
        client = await checkpoint_utils.open_training_client(
            service,
            model_name=config.model_name,
            lora_rank=config.lora_rank,
            resume_from=resume,
            load_checkpoint_path=None,
            renderer_name=name,
        )
        start = (resume.batch or 0) if resume is not None else 0
        if start and log.store is not None:
            log.store.truncate_metrics(start)
        for step in range(start, total):
            if config.save_every and step and step % config.save_every == 0 and step > start:
                await checkpoint_utils.save_checkpoint_async(
                    client, f"{step:06d}", config.log_path, {"batch": step}, "state", config.ttl_seconds
                )
            rows = conversations[step * config.batch_size : (step + 1) * config.batch_size]
            data = [conversation_to_datum(row, renderer, config.max_length, config.train_on_what) for row in rows]
            rate = config.learning_rate * (1 - step / total)
            params = tinker.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-8)
            # Both calls are made before either result is awaited: the server runs them back to back.
            forward_backward = client.forward_backward(data, "cross_entropy")
            optim = client.optim_step(params)
            result = await forward_backward
            await optim
            logprobs = [output["logprobs"] for output in result.loss_fn_outputs]
            nll = compute_mean_nll(logprobs, [datum.loss_fn_inputs["weights"] for datum in data])
            log.log_metrics({"train_mean_nll": nll, "learning_rate": rate, "progress": (step + 1) / total}, step=step)
        await checkpoint_utils.save_checkpoint_async(
            client, "final", config.log_path, {"batch": total, "final": True}, "both"
        )
    log.close()


if __name__ == "__main__":
    entry.run(main)
