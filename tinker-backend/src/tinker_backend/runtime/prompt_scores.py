"""What a request wants to know about its prompt: logprobs, most probable tokens, chosen targets, alternatives.

All at temperature 1. The hidden state at position i scores the token at position i + 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinker_backend.runtime.roles import Array, CsrArray, SampleRequest, TopK
from tinker_backend.runtime.token_choice import EMPTY_LOGPROB


class PromptScores:
    """Collects the scores of one prompt while its hidden states pass by."""

    def __init__(self, request: SampleRequest) -> None:
        self.request = request
        self._tokens = np.asarray(request.tokens, dtype=np.int64)
        size = len(self._tokens)
        self._targets = _target_ids(request.target_prompt_logprobs)
        self.first_row = max(0, size - 1 - request.prompt_logprobs_last_n) if request.prompt_logprobs_last_n else 0
        if self._targets is not None or request.topk_prompt_logprobs or request.prompt_alt_tokens_k:
            self.first_row = 0
        wanted = request.prompt_logprobs or request.topk_prompt_logprobs or request.prompt_alt_tokens_k
        self.wanted = size > 1 and bool(wanted or self._targets is not None)
        """Whether hidden states ``first_row .. size - 2`` are needed at all."""
        self._logprobs = np.full(size, np.nan, dtype=np.float32)
        self._top = _empty_topk(size, request.topk_prompt_logprobs)
        self._alternatives = _empty_topk(size - 1, request.prompt_alt_tokens_k)
        self._target_logprobs = None if self._targets is None else np.zeros(self._targets.shape, dtype=np.float32)

    def collect(self, row: int, logits_nV: Tensor, normalizer_n1: Tensor) -> None:
        """Takes float32 logits of hidden states ``row .. row + n - 1``, none beyond the last but one position."""
        count = logits_nV.shape[0]
        actual = torch.from_numpy(self._tokens[row + 1 : row + 1 + count]).to(logits_nV.device).unsqueeze(1)
        if self.request.prompt_logprobs:
            chosen = (logits_nV.gather(1, actual) - normalizer_n1).squeeze(1)
            self._logprobs[row + 1 : row + 1 + count] = chosen.cpu().numpy()
        if self.request.topk_prompt_logprobs:
            _fill(self._top, row + 1, *_topk(logits_nV, normalizer_n1, self.request.topk_prompt_logprobs))
        if self.request.prompt_alt_tokens_k:
            ids, logprobs = _topk(logits_nV, normalizer_n1, self.request.prompt_alt_tokens_k + 1)
            _fill(self._alternatives, row, *_without(ids, logprobs, self._tokens[row + 1 : row + 1 + count]))
        if self._targets is not None and self._target_logprobs is not None:
            wanted = torch.from_numpy(self._targets[row : row + count]).to(logits_nV.device)
            values = (logits_nV.gather(1, wanted.clamp_min(0)) - normalizer_n1).masked_fill_(wanted < 0, 0.0)
            self._target_logprobs[row : row + count] = values.cpu().numpy()

    def prompt_logprobs(self) -> npt.NDArray[np.float32] | None:
        """float32 (n,), NaN where nothing was asked."""
        return self._logprobs if self.request.prompt_logprobs else None

    def top(self) -> TopK | None:
        """One row for each prompt position; the first is empty."""
        return self._top if self.request.topk_prompt_logprobs else None

    def alternatives(self) -> TopK | None:
        """The k most probable tokens other than the prompt's own, for positions 1 .. n - 1."""
        return self._alternatives if self.request.prompt_alt_tokens_k else None

    def targets(self) -> Array | CsrArray | None:
        """Logprobs of the asked ids in the layout of the request."""
        asked = self.request.target_prompt_logprobs
        if self._target_logprobs is None or asked is None:
            return None
        if not isinstance(asked, CsrArray):
            return self._target_logprobs
        rows = np.repeat(np.arange(asked.shape[0]), np.diff(asked.crow_indices))
        values = self._target_logprobs[rows, np.asarray(asked.col_indices)]
        return CsrArray(values, asked.crow_indices, asked.col_indices, asked.shape)


def _target_ids(asked: Array | CsrArray | None) -> npt.NDArray[np.int64] | None:
    if asked is None:
        return None
    if not isinstance(asked, CsrArray):
        return np.array(asked, dtype=np.int64)
    out = np.full(asked.shape, -1, dtype=np.int64)
    out[np.repeat(np.arange(asked.shape[0]), np.diff(asked.crow_indices)), asked.col_indices] = asked.values
    return out


def _empty_topk(rows: int, k: int) -> TopK:
    ids = np.zeros((max(rows, 0), k), dtype=np.int32)
    return TopK(ids, np.full(ids.shape, EMPTY_LOGPROB, dtype=np.float32))


def _topk(logits: Tensor, normalizer: Tensor, k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    values, ids = logits.topk(min(k, logits.shape[1]), dim=-1)
    return ids.to("cpu", torch.int32).numpy(), (values - normalizer).cpu().numpy()


def _without(
    ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32], actual: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Removes the actual token from each row, or the last cell where it is not among them."""
    keep = ids != actual[:, None]
    keep[keep.all(-1), -1] = False
    shape = (ids.shape[0], ids.shape[1] - 1)
    return ids[keep].reshape(shape), logprobs[keep].reshape(shape)


def _fill(target: TopK, row: int, ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32]) -> None:
    target.token_ids[row : row + len(ids), : ids.shape[1]] = ids
    target.logprobs[row : row + len(ids), : ids.shape[1]] = logprobs
