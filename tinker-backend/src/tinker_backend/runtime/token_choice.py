"""Choosing the next token: temperature, top-k, top-p, and random numbers that depend on the request alone.

The random number of a step is a hash of (seed, sample index, step), and a token is the point where the cumulative
distribution passes it. So a request gives the same tokens alone or in company, after a pause, or after its cache was
dropped and computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK = 128
_NUCLEUS = 512
"""Candidates that top-p looks at before it sorts the whole vocabulary."""
EMPTY_LOGPROB = -99999.0
_COLDEST = 1e-30
"""Logits divided by less would leave float32."""


@dataclass(frozen=True)
class ChoiceParams:
    """How one row is sampled. temperature 0: the most probable token; top_k <= 0 and top_p 1: no filter."""

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0

    @property
    def filtered(self) -> bool:
        """Some tokens are cut off before sampling."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1.0)


@dataclass(frozen=True)
class Choice:
    """Chosen tokens (n,) with the logprobs of the distribution they were drawn from (greedy: at temperature 1).

    ``top_ids`` and ``top_logprobs`` (n, k): the most probable tokens of that distribution.
    """

    tokens: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32] | None = None
    top_logprobs: npt.NDArray[np.float32] | None = None


def uniforms(seeds: Sequence[int], indices: Sequence[int], steps: Sequence[int]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), one for each (seed, sample index, step), by the finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        state = _mix(np.array([s & 0xFFFFFFFFFFFFFFFF for s in seeds], dtype=np.uint64))
        state = _mix(state ^ np.asarray(indices, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03))
        state = _mix(state ^ np.asarray(steps, dtype=np.uint64) * np.uint64(0x8CB92BA72F3D8DD7))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def choose(logits_nV: Tensor, params: Sequence[ChoiceParams], draws: npt.NDArray[np.float64], top: int = 0) -> Choice:
    """Samples one token for each row of float32 logits. ``draws`` in [0, 1); ``logits_nV`` may be overwritten."""
    count = len(params)
    temperatures = [max(p.temperature, _COLDEST) if p.temperature > 0 else 1.0 for p in params]
    if any(t != 1.0 for t in temperatures):
        logits_nV = logits_nV / torch.tensor(temperatures, device=logits_nV.device).unsqueeze(1)
    filtered = [i for i, p in enumerate(params) if p.filtered]
    plain = not (top or filtered or any(p.temperature <= 0 for p in params))
    tokens, logprobs, normalizer = _draw(logits_nV, draws, overwrite=plain)
    greedy = [i for i, p in enumerate(params) if p.temperature <= 0]
    if greedy:
        rows = torch.tensor(greedy, device=logits_nV.device)
        best, where = logits_nV[rows].max(-1)
        tokens[rows], logprobs[rows] = where, best - normalizer[rows]
    top_ids = top_logprobs = None
    if top:
        values, ids = logits_nV.topk(min(top, logits_nV.shape[1]), dim=-1)
        pad = top - ids.shape[1]
        top_ids = F.pad(ids, (0, pad)).to("cpu", torch.int32).numpy()
        top_logprobs = F.pad(values - normalizer.unsqueeze(1), (0, pad), value=EMPTY_LOGPROB).cpu().numpy()
    token_array, logprob_array = tokens.cpu().numpy(), logprobs.to("cpu", torch.float32).numpy()
    if filtered:
        _draw_filtered(logits_nV, params, draws, filtered, token_array, logprob_array, top_ids, top_logprobs)
    assert len(token_array) == count
    return Choice(token_array, logprob_array, top_ids, top_logprobs)


def _draw(logits: Tensor, draws: npt.NDArray[np.float64], overwrite: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Inverse-CDF sampling of the plain softmax: the block first, then the token in it. Returns tokens, logprobs, lse."""
    count, vocab = logits.shape
    peak = logits.amax(-1, keepdim=True)
    blocks = -(-vocab // _BLOCK)
    if blocks * _BLOCK == vocab:
        mass = (logits.sub_(peak) if overwrite else torch.sub(logits, peak)).exp_()
    else:
        mass = logits.new_zeros(count, blocks * _BLOCK)
        torch.sub(logits, peak, out=mass[:, :vocab])
        mass[:, :vocab].exp_()
    mass = mass.view(count, blocks, _BLOCK)
    rows = torch.arange(count, device=logits.device)
    cumulative = mass.sum(-1).double().cumsum(-1)
    total = cumulative[:, -1:]
    goal = torch.from_numpy(draws).to(logits.device).unsqueeze(1) * total
    block = torch.searchsorted(cumulative, goal, right=True).clamp_max_(blocks - 1)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp_min(0)), torch.zeros_like(goal))
    inside = mass[rows, block.squeeze(1)].double().cumsum(-1)
    rest = torch.minimum(goal - before, inside[:, -1:] * (1 - 1e-12)).clamp_min_(0.0)
    token = block * _BLOCK + torch.searchsorted(inside, rest, right=True).clamp_max_(_BLOCK - 1)
    token = token.clamp_max_(vocab - 1)
    normalizer = (total.log() + peak.double()).to(torch.float32)
    logprobs = (mass.view(count, -1).gather(1, token).double() / total).log_().to(torch.float32)
    return token.squeeze(1), logprobs.squeeze(1), normalizer.squeeze(1)


def _draw_filtered(
    logits: Tensor,
    params: Sequence[ChoiceParams],
    draws: npt.NDArray[np.float64],
    rows: list[int],
    tokens: npt.NDArray[np.int64],
    logprobs: npt.NDArray[np.float32],
    top_ids: npt.NDArray[np.int32] | None,
    top_logprobs: npt.NDArray[np.float32] | None,
) -> None:
    """Rows with top-k and top-p: k first, then the smallest set whose renormalised mass reaches p."""
    vocab = logits.shape[1]
    wanted = max(min(params[i].top_k, vocab) if params[i].top_k > 0 else min(_NUCLEUS, vocab) for i in rows)
    chosen = logits[torch.tensor(rows, device=logits.device)]
    totals = torch.logsumexp(chosen, -1).double().cpu().numpy()
    values, ids = _sorted(chosen, wanted)
    for place, row in enumerate(rows):
        p = params[row]
        v, order = values[place], ids[place]
        if p.top_k > 0:
            v, order = v[: p.top_k], order[: p.top_k]
            mass = np.exp(v - v[0])
            mass /= mass.sum()
        else:
            mass = np.exp(v - totals[place])
            if mass.sum() < p.top_p and len(v) < vocab:
                full_values, full_ids = _sorted(chosen[place : place + 1], vocab)
                v, order = full_values[0], full_ids[0]
                mass = np.exp(v - totals[place])
        if p.top_p < 1.0:
            keep = int(np.searchsorted(np.cumsum(mass), p.top_p)) + 1
            mass, order = mass[:keep], order[:keep]
        cumulative = np.cumsum(mass)
        pick = min(int(np.searchsorted(cumulative, draws[row] * cumulative[-1], side="right")), len(mass) - 1)
        tokens[row] = order[pick]
        logprobs[row] = np.log(mass[pick] / cumulative[-1])
        if top_ids is not None and top_logprobs is not None:
            shown = min(top_ids.shape[1], len(mass))
            top_ids[row], top_logprobs[row] = 0, EMPTY_LOGPROB
            top_ids[row, :shown] = order[:shown]
            top_logprobs[row, :shown] = np.log(mass[:shown] / cumulative[-1])


def _sorted(logits: Tensor, count: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    values, ids = logits.topk(count, dim=-1) if count < logits.shape[1] else logits.sort(dim=-1, descending=True)
    return values.double().cpu().numpy(), ids.cpu().numpy()
