"""Trajectories to training data."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import tinker
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Trajectory, TrajectoryGroup
from tinker_cookbook.utils.misc_utils import all_same

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

# A token, or a chunk of another kind as a whole.
FlatObElem: TypeAlias = "int | tinker.ModelInputChunk"
FlatOb: TypeAlias = list[FlatObElem]
Element: TypeAlias = Any
ProvenanceSpan: TypeAlias = tinker.PromptProvenanceSpan | tinker.SampledProvenanceSpan


def compute_advantages(trajectory_groups_P: list[TrajectoryGroup]) -> list[torch.Tensor]:
    """Total reward minus group mean, one tensor [G] per group."""
    import torch

    out = []
    for group in trajectory_groups_P:
        rewards_G = torch.tensor(group.get_total_rewards(), dtype=torch.float64)
        out.append((rewards_G - rewards_G.mean()).to(torch.float32))
    return out


@dataclass
class _OpenDatum:
    """One growing sequence with its per-element arrays."""

    elements: list[Element] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    spans: list[tuple[str | None, int, bool]] = field(default_factory=list)  # (sequence id, length, sampled)

    def extended_by(self, observation: list[Element]) -> bool:
        """Whether the observation starts with everything so far."""
        return observation[: len(self.elements)] == self.elements

    def observe(self, new: list[Element]) -> None:
        sizes = [_size(element) for element in new]
        self.elements += new
        zeros = [0.0] * sum(sizes)
        self.logprobs += zeros
        self.advantages += zeros
        self.mask += zeros
        if new:
            self.spans.append((None, sum(sizes), False))

    def act(
        self, tokens: list[int], logprobs: list[float], advantage: float, trained: bool, sequence: str | None
    ) -> None:
        self.elements += tokens
        self.logprobs += logprobs
        self.advantages += [advantage if trained else 0.0] * len(tokens)
        self.mask += [1.0 if trained else 0.0] * len(tokens)
        self.spans.append((sequence, len(tokens), True))

    def close(self, provenance: bool) -> tinker.Datum:
        chunks = to_chunks(self.elements)
        arrays = [np.asarray(a, dtype=np.float32) for a in (self.logprobs, self.advantages, self.mask)]
        while chunks and not isinstance(chunks[-1], tinker.EncodedTextChunk):
            dropped = chunks.pop().length  # nothing follows an image at the end, so nothing can be predicted from it
            arrays = [array[:-dropped] for array in arrays]
        tokens = flat_tokens(chunks)
        targets = np.asarray(tokens[1:], dtype=np.int64)
        last = chunks[-1]
        inputs = [*chunks[:-1]]
        if last.length > 1:
            inputs.append(tinker.EncodedTextChunk(tokens=list(last.tokens)[:-1]))
        logprobs, advantages, mask = (array[1:] for array in arrays)
        datum = tinker.Datum(
            model_input=tinker.ModelInput(chunks=inputs),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData.from_numpy(targets),
                "logprobs": tinker.TensorData.from_numpy(logprobs),
                "advantages": tinker.TensorData.from_numpy(advantages),
                "mask": tinker.TensorData.from_numpy(mask),
            },
        )
        named = all(sequence is not None for sequence, _, sampled in self.spans if sampled)
        return self._with_provenance(datum) if provenance and named else datum

    def _with_provenance(self, datum: tinker.Datum) -> tinker.Datum:
        inputs = _spans(self.spans, 0, datum.model_input.length)
        targets = _spans(self.spans, 1, len(datum.loss_fn_inputs["target_tokens"].data) + 1)
        return datum.with_provenance(model_input=inputs, loss_fn_inputs=targets)


def _spans(spans: list[tuple[str | None, int, bool]], start: int, end: int) -> list[Any]:
    """Provenance of the positions start..end: every observation is the prompt of the sequence sampled after it."""
    out: list[Any] = []
    position = 0
    for index, (sequence, length, _) in enumerate(spans):
        begin, stop = max(position, start), min(position + length, end)
        if stop <= begin:
            pass
        elif sequence is None:
            owner = next(following for following, _, _ in spans[index + 1 :] if following is not None)
            out.append(tinker.PromptProvenanceSpan(sequence_id=owner, length=stop - begin, offset=begin))
        else:
            out.append(tinker.SampledProvenanceSpan(sequence_id=sequence, length=stop - begin, offset=begin - position))
        position += length
    return out


def _size(element: Element) -> int:
    return 1 if isinstance(element, int) else int(element.length)


def to_elements(model_input: tinker.ModelInput) -> list[Element]:
    """Tokens one by one; other chunks as whole objects."""
    elements: list[Element] = []
    for chunk in model_input.chunks:
        if isinstance(chunk, tinker.EncodedTextChunk):
            elements.extend(int(token) for token in chunk.tokens)
        else:
            elements.append(chunk)
    return elements


def to_chunks(elements: Sequence[Element]) -> list[Any]:
    """Elements as chunks; neighbouring tokens share one."""
    chunks: list[Any] = []
    run: list[int] = []
    for element in elements:
        if isinstance(element, int):
            run.append(element)
            continue
        if run:
            chunks.append(tinker.EncodedTextChunk(tokens=run))
            run = []
        chunks.append(element)
    if run:
        chunks.append(tinker.EncodedTextChunk(tokens=run))
    return chunks


def flat_tokens(chunks: Sequence[Any]) -> list[int]:
    """One token per position; positions of other chunks are 0."""
    tokens: list[int] = []
    for chunk in chunks:
        tokens.extend(chunk.tokens if isinstance(chunk, tinker.EncodedTextChunk) else [0] * chunk.length)
    return tokens


def trajectory_to_data(
    traj: Trajectory, traj_advantage: float | Sequence[float], include_provenance: bool = True
) -> list[tinker.Datum]:
    """Data of one trajectory; ``traj_advantage`` is one number, or one per turn.

    While each observation starts with everything seen before, turns share one datum; otherwise a new one begins.
    ``loss_fn_inputs``: target_tokens (int64), logprobs, advantages, mask (float32), all shifted by one; the last
    three are 0 on observation tokens. The mask must be removed before sending (``without_mask``).
    """
    per_turn = _per_turn(traj_advantage, len(traj.transitions))
    data: list[tinker.Datum] = []
    open_datum: _OpenDatum | None = None
    for turn, advantage in zip(traj.transitions, per_turn, strict=True):
        if not turn.ac.tokens:
            continue  # an episode that ended before its first action
        observation = to_elements(turn.ob)
        if open_datum is None or not open_datum.extended_by(observation):
            if open_datum is not None:
                data.append(open_datum.close(include_provenance))
            open_datum = _OpenDatum()
        open_datum.observe(observation[len(open_datum.elements) :])
        trained = not turn.metrics.get(PARSE_ERROR_MASKED_METRIC_KEY)
        open_datum.act(list(turn.ac.tokens), list(turn.ac.logprobs), advantage, trained, turn.ac.sequence_id)
    if open_datum is not None:
        data.append(open_datum.close(include_provenance))
    return [datum for datum in data if datum.model_input.length > 0]


def _per_turn(advantage: float | Sequence[float], turns: int) -> list[float]:
    values = np.atleast_1d(np.asarray(advantage, dtype=np.float64)).tolist()
    if len(values) == 1:
        return values * turns
    if len(values) != turns:
        raise ValueError(f"{len(values)} advantages for {turns} turns")
    return list(values)


def assemble_training_data(
    trajectory_groups_P: list[TrajectoryGroup], advantages_P: Sequence[Any], include_provenance: bool = True
) -> tuple[list[tinker.Datum], list[dict[str, int]]]:
    """Data of all groups, and for each datum ``group_idx`` and ``traj_idx``."""
    data_D: list[tinker.Datum] = []
    metadata_D: list[dict[str, int]] = []
    for group_idx, (group, advantages_G) in enumerate(zip(trajectory_groups_P, advantages_P, strict=True)):
        for traj_idx, (trajectory, advantage) in enumerate(zip(group.trajectories_G, advantages_G, strict=True)):
            value = advantage if np.ndim(advantage) else float(advantage)
            for datum in trajectory_to_data(trajectory, value, include_provenance):
                data_D.append(datum)
                metadata_D.append({"group_idx": group_idx, "traj_idx": traj_idx})
    return data_D, metadata_D


def without_mask(datum: tinker.Datum) -> tinker.Datum:
    """The datum as the server takes it."""
    inputs = {key: value for key, value in datum.loss_fn_inputs.items() if key != "mask"}
    return tinker.Datum(
        model_input=datum.model_input,
        loss_fn_inputs=inputs,
        model_input_spans=getattr(datum, "model_input_spans", None),
        loss_fn_input_spans=getattr(datum, "loss_fn_input_spans", None),
    )


def has_constant_rewards(group: TrajectoryGroup) -> bool:
    """Whether all trajectories have one total reward, so that nothing can be learnt from their comparison."""
    return all_same(group.get_total_rewards())


def remove_constant_reward_groups(trajectory_groups_P: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Groups with different rewards; if there is none, the first group, so that a step has data."""
    kept = [group for group in trajectory_groups_P if not has_constant_rewards(group)]
    if not kept and trajectory_groups_P:
        logger.warning("all %d groups have constant rewards; keeping the first", len(trajectory_groups_P))
        return trajectory_groups_P[:1]
    return kept
