"""Datums and trajectories for human eyes."""

from __future__ import annotations

from typing import Any

import numpy as np

import tinker
from tinker_cookbook.rl.types import Trajectory
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils.format_colorized import format_colorized


def to_ints(chunk: Any, tokenizer: Tokenizer) -> list[int]:
    """Tokens of a chunk; other chunks as a text in brackets."""
    if isinstance(chunk, tinker.EncodedTextChunk):
        return list(chunk.tokens)
    return list(tokenizer.encode(f"[{type(chunk).__name__} of {chunk.length} tokens]", add_special_tokens=False))


def colorize_example(datum: tinker.Datum, tokenizer: Tokenizer, key: str = "weights") -> str:
    """Text of a datum's targets, coloured by a loss input."""
    targets = np.asarray(datum.loss_fn_inputs["target_tokens"].to_numpy())
    weights = np.asarray(datum.loss_fn_inputs[key].to_numpy())
    if targets.ndim == 2:
        targets, weights = targets[:, 0], weights.sum(axis=1)
    return format_colorized([int(t) for t in targets], [float(w) for w in weights], tokenizer)


def format_trajectory(trajectory: Trajectory, tokenizer: Tokenizer, only_last_transition: bool = False) -> str:
    """Prompts, answers and rewards of an episode."""
    turns = trajectory.transitions[-1:] if only_last_transition else trajectory.transitions
    lines = []
    for index, turn in enumerate(turns):
        prompt = [token for chunk in turn.ob.chunks for token in to_ints(chunk, tokenizer)]
        lines.append(f"--- turn {index}\n{tokenizer.decode(prompt)}")
        lines.append(f">>> {tokenizer.decode(turn.ac.tokens)}")
        lines.append(f"reward {turn.reward:.3f}, done {turn.episode_done}, metrics {turn.metrics}")
    return "\n".join(lines)
