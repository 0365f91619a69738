"""Prompt logprobs from the trainer's weights, for what vLLM cannot score: adapters on the output projection, chosen targets."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from tinker_backend.runtime.attention import PackLayout, packed_attention
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.decoder import Adapters
from tinker_backend.runtime.head import Head, clip_segments
from tinker_backend.runtime.lora import Adapter, AdapterLayout, AdapterSegment
from tinker_backend.runtime.prompt_scores import PromptScores
from tinker_backend.runtime.roles import LoraSpec, RuntimeFault, SampleRequest, SampleResult
from tinker_backend.runtime.weight_files import read_manifest, read_values

_ADAPTERS = 4


class AdapterShelf:
    """Adapters of the sampler folders that were asked for last."""

    def __init__(self, base: BaseModel) -> None:
        self.base = base
        self._held: OrderedDict[str, Adapter] = OrderedDict()

    def segments(self, path: str | None, rows: int) -> list[AdapterSegment]:
        """Segments that apply the adapter of a folder (None: the base alone) to all rows."""
        if path is None:
            return []
        if path not in self._held:
            layout, values = read_values(self.base, LoraSpec(**read_manifest(path)["lora"]), path)
            if not isinstance(layout, AdapterLayout):
                raise RuntimeFault(f"{path} holds all weights; its prompts are scored by the sampler", "server")
            self._held[path] = Adapter(layout, values, self.base.dtype)
            if len(self._held) > _ADAPTERS:
                self._held.popitem(last=False)
        self._held.move_to_end(path)
        return [AdapterSegment(0, rows, self._held[path])]


def scores_of(request: SampleRequest, head: Head, hidden: Tensor) -> SampleResult:
    """What the request asks about its prompt, out of the prompt's hidden states (T, D)."""
    scores = PromptScores(request)
    last = len(request.tokens) - 1
    for row in range(scores.first_row, last if scores.wanted else 0, head.chunk_rows):
        stop = min(row + head.chunk_rows, last)
        logits, _ = head.logits(hidden[row:stop], clip_segments(head.segments, row, stop))
        scores.collect(row, logits, torch.logsumexp(logits, -1, keepdim=True))
    return SampleResult(
        [],
        prompt_logprobs=scores.prompt_logprobs(),
        topk_prompt_logprobs=scores.top(),
        target_prompt_logprobs=scores.targets(),
        prompt_alt_tokens=scores.alternatives(),
    )


@torch.no_grad()
def score_prompt(base: BaseModel, shelf: AdapterShelf, request: SampleRequest, path: str | None) -> SampleResult:
    """The same over the whole weights of an embedded trainer."""
    tokens = torch.tensor(request.tokens.astype("int64"), device=base.device)
    layout, scale = PackLayout([len(tokens)], base.device), base.decoder.scale
    segments = shelf.segments(path, len(tokens))
    hidden = base.decoder.hidden(
        base.weights,
        tokens,
        layout.positions.to(base.device),
        lambda _, q, k, v: packed_attention(q, k, v, layout, scale),
        Adapters(segments),
    )
    return scores_of(request, base.decoder.head(base.weights, segments), hidden)
