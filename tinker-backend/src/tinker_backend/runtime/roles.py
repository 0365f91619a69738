"""The two roles of a runtime, Trainer and Sampler, and the plain data that passes between server and runtime.

Nothing here imports torch: the server and the runtime both speak these types, and ``messages.py`` carries them
over ZeroMQ. Arrays are numpy, little-endian, C-order. Shapes: N = positions of a datum, K = alternatives a position.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


class RuntimeFault(Exception):
    """A request that the runtime could not serve.

    ``category`` is ``user`` (the request is wrong), ``server`` (the runtime is) or ``unknown``.
    """

    def __init__(self, message: str, category: Literal["user", "server", "unknown"] = "server") -> None:
        super().__init__(message)
        self.category = category


@dataclass(frozen=True)
class LoraSpec:
    """Adapter of a run. ``rank`` 0: no adapter, all weights are trained. The scale is ``alpha / rank``."""

    rank: int = 32
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True
    alpha: float = 32.0


@dataclass(frozen=True)
class RunSpec:
    """A training run: one set of trainable weights over one base model."""

    run_id: str
    base_model: str
    lora: LoraSpec
    optimizer: str = "adamw"


@dataclass(frozen=True)
class CsrArray:
    """A sparse (N, K) input. Cells that are not listed hold 0 (training) or -1 (target_prompt_logprobs)."""

    values: Array
    crow_indices: IntArray
    col_indices: IntArray
    shape: tuple[int, int]


@dataclass(frozen=True)
class Datum:
    """Input tokens (N,) int32 and named tensors aligned with them; entry i concerns the token after position i."""

    tokens: npt.NDArray[np.int32]
    inputs: dict[str, Array | CsrArray]


@dataclass(frozen=True)
class LossRequest:
    """One forward_backward of one run. ``graph`` is the traced graph of a custom loss (wire format of its upload)."""

    run_id: str
    seq_id: int
    data: list[Datum]
    loss_fn: str
    config: dict[str, float | str] = field(default_factory=dict)
    forward_only: bool = False
    graph: dict[str, object] | None = None


@dataclass(frozen=True)
class LossResult:
    """Per datum named float32 arrays (``logprobs`` with the shape of ``target_tokens``) and ``name:reducer`` metrics."""

    outputs: list[dict[str, Array]]
    metrics: dict[str, float]


@dataclass(frozen=True)
class OptimParams:
    """AdamW as of one step. ``grad_clip_norm`` <= 0: no clipping; else the global L2 norm is clipped to it."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class SampleRequest:
    """One asample. ``sampler`` names a published weights version. ``stop_token_ids`` empty: nothing stops but length."""

    request_id: str
    sampler: str
    tokens: npt.NDArray[np.int32]
    num_samples: int = 1
    max_tokens: int | None = None
    seed: int | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    stop_token_ids: list[int] | None = None
    """None: the model's end-of-sequence ids."""
    stop_strings: list[str] = field(default_factory=list)
    prompt_logprobs: bool = False
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Array | CsrArray | None = None
    """int64 (len(tokens) - 1, K); -1 = skip."""
    prompt_alt_tokens_k: int = 0


@dataclass(frozen=True)
class TopK:
    """Rows of the k most probable tokens: ids int32 (rows, k), logprobs float32 (rows, k); empty cell: 0, -99999.0."""

    token_ids: npt.NDArray[np.int32]
    logprobs: FloatArray


@dataclass(frozen=True)
class Sequence:
    """One sampled continuation; a stop token that ended it is included. Logprobs are those of the distribution
    that was sampled from (after temperature, top-k and top-p)."""

    tokens: npt.NDArray[np.int32]
    logprobs: FloatArray
    stop_reason: Literal["stop", "length"]
    topk: TopK | None = None


@dataclass(frozen=True)
class SamplePart:
    """What one sequence of a streamed request has gained, sent before the SampleResult (which holds everything again).

    ``offset``: position of the first of these tokens in its sequence.
    """

    index: int
    offset: int
    tokens: npt.NDArray[np.int32]
    logprobs: FloatArray
    topk: TopK | None = None


@dataclass(frozen=True)
class SampleResult:
    """Answer to a SampleRequest. ``prompt_logprobs`` float32 (len(prompt),), NaN where there is none (at least at 0)."""

    sequences: list[Sequence]
    prompt_logprobs: FloatArray | None = None
    topk_prompt_logprobs: TopK | None = None
    target_prompt_logprobs: Array | CsrArray | None = None
    prompt_alt_tokens: TopK | None = None
    prompt_cache_hit_tokens: int = 0


@dataclass(frozen=True)
class ModelCard:
    """A base model that the runtime serves."""

    name: str
    path: str
    arch: str
    vocab_size: int
    max_context_length: int
    tokenizer_path: str
    trainable: bool = True
    sampleable: bool = True
    aliases: list[str] = field(default_factory=list)
    eos_token_ids: list[int] = field(default_factory=list)
    max_lora_rank: int = 128
    parameters: int = 0


@dataclass(frozen=True)
class SavedWeights:
    """What a save left on disk. ``files`` maps relative names to sizes in bytes."""

    path: str
    size_bytes: int
    files: dict[str, int]


SaveKind = Literal["training", "sampler", "external"]
"""training: weights, gradients and optimizer, all that a restart needs; sampler: weights that a sampler loads;
external: a PEFT adapter folder (LoRA) or a Hugging Face model folder (all weights)."""


class Trainer(Protocol):
    """Holds the runs."""

    def create(self, run: RunSpec) -> None: ...

    def forward_backward(self, batch: list[LossRequest]) -> list[LossResult | RuntimeFault]:
        """Many runs in one pass; a request that fails yields a RuntimeFault in its place and harms no other."""
        ...

    def optim_step(self, run_id: str, params: OptimParams) -> dict[str, float]: ...

    def save(self, run_id: str, path: str, kind: SaveKind) -> SavedWeights:
        """Writes the folder ``path`` atomically (temporary sibling, fsync, rename)."""
        ...

    def load(self, run: RunSpec, path: str, optimizer: bool) -> None:
        """Creates the run, or overwrites it when it exists, from a ``training`` folder (or weights alone)."""
        ...

    def drop(self, run_id: str) -> None: ...


class Sampler(Protocol):
    """Serves immutable weights versions."""

    def publish(self, run_id: str, version: str) -> None:
        """Freezes the run's present weights under a new name, without copying base weights."""
        ...

    def load(self, version: str, base_model: str, path: str | None) -> None:
        """Makes a saved sampler folder, or the base model itself (``path`` None), known under ``version``."""
        ...

    def sample(self, request: SampleRequest) -> Awaitable[SampleResult]: ...

    def cancel(self, request_id: str) -> None: ...

    def drop(self, version: str) -> None: ...
