"""Logprobs of the sampler against those of the trainer, token by token, for the model of a server.

python -m tinker_cookbook.recipes.rl_numerics_check.compare model_name=...

Each round samples answers with the newest weights and asks three times for the logprob of every sampled token: the
sampler's own while it sampled (decode), the sampler's for the finished sequence (prefill), the trainer's forward pass.
Then an optimizer step moves the weights, so that the next round also sees weights that did not arrive: they would show as
a difference of the size that the column "moved" had in the round before.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import chz
import numpy as np

import tinker
from tinker_cookbook import checkpoint_utils, renderers, tokenizer_utils
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.rl.metrics import score_tokens
from tinker_cookbook.supervised.data import conversation_from_row
from tinker_cookbook.utils import ml_log
from tinker_cookbook.utils.file_utils import read_jsonl
from tinker_cookbook.utils.git_rev import recipe_user_metadata

PAIRS = (
    ("kl_sample_train", "decode", "trainer"),
    ("kl_sample_prefill", "decode", "prefill"),
    ("moved", "trainer", "after_step"),
)
"""Name of a comparison, and what it compares."""


@chz.chz
class CLIConfig:
    """``conversations``: JSONL with messages, whose user turns are the prompts; ``turns`` conversations make a prompt.
    ``tolerance``: largest ``kl_sample_train_v2`` of a round. ``worst``: tokens to list. ``log_path``: None writes no files.
    """

    model_name: str = "Qwen/Qwen3.5-9B"
    renderer_name: str | None = None
    load_checkpoint_path: str | None = None
    lora_rank: int = 32
    rounds: int = 3
    prompts: int = 16
    turns: int = 2
    samples: int = 4
    max_tokens: int = 128
    learning_rate: float = 1e-3
    tolerance: float = 1e-3
    worst: int = 5
    conversations: str = entry.example_data("conversations.jsonl")
    seed: int = 0
    base_url: str | None = None
    log_path: str | None = None

    @chz.validate
    def _check(self) -> None:
        for name in ("rounds", "prompts", "turns", "samples", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(frozen=True)
class ScoredSample:
    """A sampled answer with the logprobs of its tokens by the three ways, and the trainer's after the step of the round.
    Arrays have one entry a token."""

    prompt: list[int]
    tokens: list[int]
    decode: np.ndarray
    prefill: np.ndarray
    trainer: np.ndarray
    after_step: np.ndarray


def compare(samples: Sequence[ScoredSample]) -> dict[str, float]:
    """Mean (v1), half the mean square (v2) and largest amount of the differences between the logprobs of two ways; the v2 of
    the trainer before and after the step (``moved``); entropy."""
    out: dict[str, float] = {"tokens": float(sum(len(sample.tokens) for sample in samples))}
    for name, first, second in PAIRS:
        difference = np.concatenate([getattr(s, first) - getattr(s, second) for s in samples])
        out[f"{name}_v1"] = float(difference.mean())
        out[f"{name}_v2"] = float(0.5 * (difference**2).mean())
        out[f"{name}_max"] = float(np.abs(difference).max())
    out["entropy"] = float(-np.concatenate([s.decode for s in samples]).mean())
    return out


def datum(prompt: list[int], tokens: list[int], logprobs: np.ndarray, advantage: float) -> tinker.Datum:
    """A sampled answer as training data; the prompt has no advantage."""
    sampled = np.concatenate([np.zeros(len(prompt) - 1), np.ones(len(tokens))])
    values = np.concatenate([np.zeros(len(prompt) - 1), logprobs])
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints([*prompt, *tokens[:-1]]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(np.asarray([*prompt[1:], *tokens])),
            "logprobs": tinker.TensorData.from_numpy(values.astype(np.float32)),
            "advantages": tinker.TensorData.from_numpy((sampled * advantage).astype(np.float32)),
        },
    )


def build_prompts(config: CLIConfig, renderer: renderers.Renderer) -> list[list[int]]:
    """Prompts of ``turns`` conversations each, in the order of the file, which begins again when it ends."""
    rows = [conversation_from_row(row) for row in read_jsonl(config.conversations)]
    rows = [row for row in rows if row and row[-1]["role"] == "assistant"]
    if not rows:
        raise ConfigurationError(
            f"conversations={config.conversations!r} holds no conversation that ends with an answer"
        )
    prompts = []
    for number in range(config.prompts):
        chosen = [rows[(number * config.turns + turn) % len(rows)] for turn in range(config.turns)]
        messages = [message for row in chosen for message in row if message["role"] != "system"]
        prompts.append(renderer.build_generation_prompt(messages[:-1]).to_ints())
    return prompts


async def run_round(
    config: CLIConfig,
    client: tinker.TrainingClient,
    prompts: list[list[int]],
    stop: list[str] | list[int],
    number: int,
) -> list[ScoredSample]:
    """Sample with the weights as they are, score, and take a training step with advantages +1 and -1 in turn."""
    sampler = await client.save_weights_and_get_sampling_client()

    async def sample(index: int) -> list[tuple[list[int], list[int], np.ndarray]]:
        params = tinker.SamplingParams(
            max_tokens=config.max_tokens, stop=stop, seed=config.seed + 1000 * number + index, temperature=1.0
        )
        response = await sampler.sample(tinker.ModelInput.from_ints(prompts[index]), config.samples, params)
        return [(prompts[index], list(s.tokens), np.asarray(s.logprobs, float)) for s in response.sequences]

    sampled = [row for rows in await asyncio.gather(*map(sample, range(len(prompts)))) for row in rows if row[1]]
    data = [datum(*row, advantage=1.0 - 2.0 * (index % 2)) for index, row in enumerate(sampled)]
    scored = await score_tokens(sampler, [tinker.ModelInput.from_ints([*row[0], *row[1]]) for row in sampled])
    forward_backward = client.forward_backward(data, "importance_sampling")
    optim = client.optim_step(tinker.AdamParams(learning_rate=config.learning_rate, beta1=0.9, beta2=0.95, eps=1e-8))
    forward = client.forward(data, "importance_sampling")
    before, _, after = await forward_backward, await optim, await forward
    trainer, after_step = ([o["logprobs"].to_numpy() for o in result.loss_fn_outputs] for result in (before, after))
    return [
        ScoredSample(prompt, tokens, decode, *(array[-len(tokens) :] for array in arrays))
        for (prompt, tokens, decode), *arrays in zip(sampled, scored, trainer, after_step, strict=True)
    ]


def worst_tokens(samples: Sequence[ScoredSample], count: int, tokenizer: tokenizer_utils.Tokenizer) -> list[str]:
    """Lines about the tokens at which sampler and trainer differ most: the trainer's logprob, and the other two minus it."""
    found = [
        (abs(float(sample.decode[place] - sample.trainer[place])), number, place)
        for number, sample in enumerate(samples)
        for place in range(len(sample.tokens))
    ]
    lines = []
    for _, number, place in sorted(found, reverse=True)[:count]:
        sample = samples[number]
        lines.append(
            f"sample {number}, position {len(sample.prompt) + place}: {tokenizer.decode([sample.tokens[place]])!r}  "
            f"trainer {sample.trainer[place]:.4f}, decode {sample.decode[place] - sample.trainer[place]:+.1e}, "
            f"prefill {sample.prefill[place] - sample.trainer[place]:+.1e}"
        )
    return lines


HEADER = (
    f"{'':12}  {'decode - trainer':26}  {'decode - prefill':26}\n"
    f"{'round':5} {'tokens':6}" + 2 * f"  {'v1':>8} {'v2':>8} {'max':>8}" + f"  {'moved':>8}  entropy"
)


def table_row(number: int, row: dict[str, float]) -> str:
    """The figures of a round below ``HEADER``."""
    text = f"{number:<5} {row['tokens']:6.0f}"
    for pair in ("kl_sample_train", "kl_sample_prefill"):
        text += f"  {row[f'{pair}_v1']:8.1e} {row[f'{pair}_v2']:8.1e} {row[f'{pair}_max']:8.1e}"
    return f"{text}  {row['moved_v2']:8.1e}  {row['entropy']:7.3f}"


async def cli_main(config: CLIConfig) -> None:
    """Print a row a round; exit code 1 if sampler and trainer differ by more than the tolerance."""
    name = await entry.renderer_name(config)
    tokenizer = tokenizer_utils.get_tokenizer(config.model_name)
    renderer = renderers.get_renderer(name, tokenizer, model_name=config.model_name)
    prompts = build_prompts(config, renderer)
    log = ml_log.setup_logging(config.log_path, config=config) if config.log_path is not None else None
    logging.getLogger("httpx").setLevel(logging.WARNING)
    metadata = recipe_user_metadata("rl_numerics_check")
    over, moved = False, 0.0
    with tinker.ServiceClient(user_metadata=metadata, base_url=config.base_url) as service:
        client = await checkpoint_utils.open_training_client(
            service,
            model_name=config.model_name,
            lora_rank=config.lora_rank,
            resume_from=None,
            load_checkpoint_path=config.load_checkpoint_path,
            renderer_name=name,
            user_metadata=metadata,
            seed=config.seed,
        )
        print(HEADER, flush=True)
        for number in range(config.rounds):
            samples = await run_round(config, client, prompts, renderer.get_stop_sequences(), number)
            row = compare(samples)
            print(table_row(number, row), flush=True)
            if log is not None:
                log.log_metrics(row, step=number)
            moved = max(moved, row["moved_v2"])
            if row["kl_sample_train_v2"] > config.tolerance:
                over = True
                print(*worst_tokens(samples, config.worst, tokenizer), sep="\n", flush=True)
    if log is not None:
        log.close()
    if config.rounds > 1 and moved < config.tolerance:
        print(
            f"the steps moved the weights by {moved:.1e}, less than tolerance={config.tolerance:g}: give a larger "
            "learning_rate to see whether new weights reach the sampler"
        )
    if over:
        sys.exit(f"sampler and trainer differ: kl_sample_train_v2 is above tolerance={config.tolerance:g}")


if __name__ == "__main__":
    entry.run(cli_main)
