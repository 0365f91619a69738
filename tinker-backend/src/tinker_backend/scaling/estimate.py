"""Bytes that each GPU holds and moves, from the shape of a model and the knobs of ``engine.yaml``.

Sums over what the code allocates: nothing here is fitted to a measurement. Activations are an upper estimate for packed
sequences with attention that keeps no score matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinker_backend.scaling.model_shape import ModelShape

GIB = 1024**3
FITS = 0.9
"""Share of a GPU that an estimate may take; the rest is for fragments, NCCL and CUDA itself."""
DEFAULT_UTILIZATION = 0.85
WORKING = 2 * GIB
"""vLLM's kernels, captured graphs and the activations of a prefill chunk."""


@dataclass(frozen=True)
class TrainKnobs:
    """What decides the trainer's memory. ``lora_rank`` 0: all weights are trained; ``runs``: adapters held at once."""

    ranks: int
    lora_rank: int = 32
    runs: int = 1
    tokens: int = 16384
    """Tokens of a micro-batch on one rank (max_tokens_per_batch)."""
    checkpointing: bool = True
    offload: bool = False
    fsdp_size: int | None = None


@dataclass(frozen=True)
class SampleKnobs:
    """What decides the sampler's memory."""

    tensor_parallel: int = 1
    utilization: float = DEFAULT_UTILIZATION
    lora_rank: int = 32
    max_loras: int = 4


@dataclass(frozen=True)
class TrainMemory:
    """Bytes on one training GPU."""

    base: float
    gathered: float
    gradients: float
    optimizer: float
    adapters: float
    activations: float
    logits: float
    host: float
    """Bytes of CPU memory that offloading moves there, per rank."""

    @property
    def gpu(self) -> float:
        """All of them on the GPU."""
        return (
            self.base + self.gathered + self.gradients + self.optimizer + self.adapters + self.activations + self.logits
        )

    @property
    def held(self) -> float:
        """What stays on the GPU between two passes."""
        return self.base + self.gradients + self.optimizer + self.adapters

    def fits(self, gpu_bytes: float) -> bool:
        """Whether a GPU of so much memory holds it."""
        return self.gpu < FITS * gpu_bytes


def train_memory(shape: ModelShape, knobs: TrainKnobs) -> TrainMemory:
    """Memory of one FSDP2 rank."""
    shards = knobs.fsdp_size or knobs.ranks
    full = knobs.lora_rank == 0
    # All weights: float32 master copy, float32 gradients, two float32 moments; an adapter run keeps 16-bit weights.
    base = shape.parameters * (4 if full else 2) / shards
    gradients = shape.parameters * 4 / shards if full else 0.0
    optimizer = shape.parameters * 8 / shards if full else 0.0
    # The layer at work and the one that is prefetched, and the root's embeddings, which stay gathered.
    root = shape.embedding * (1 if shape.tied else 2)
    gathered = 2.0 * (2 * shape.layer + root) if shards > 1 else 0.0
    adapter = 0.0 if full else float(shape.lora(knobs.lora_rank))
    # Each rank: float32 values and gradients, packed 16-bit matrices; the two moments are sharded over the ranks.
    adapters = knobs.runs * adapter * (4 + 4 + 2 + 8 / knobs.ranks)
    width = shape.intermediate * max(1, shape.experts_per_token)
    per_token = 2 * shape.hidden
    inside = 2 * (6 * shape.hidden + 2 * shape.heads * shape.head_dim + 3 * width)
    kept = shape.layers * per_token + inside if knobs.checkpointing else shape.layers * (per_token + inside)
    host = base + gradients + optimizer if knobs.offload else 0.0
    if knobs.offload:
        base = gradients = optimizer = 0.0
    head_gradient = 4.0 * shape.embedding if full else 0.0
    return TrainMemory(
        base,
        gathered,
        gradients,
        optimizer,
        adapters,
        float(kept * knobs.tokens),
        2 * 64 * 1024**2 + head_gradient,
        host,
    )


@dataclass(frozen=True)
class SampleMemory:
    """Bytes on one sampling GPU, and the tokens that its cache holds (of the whole replica)."""

    weights: float
    adapters: float
    cache: float
    cache_tokens: int


def sample_memory(shape: ModelShape, knobs: SampleKnobs, gpu_bytes: float) -> SampleMemory:
    """Memory of one GPU of a vLLM replica with ``gpu_bytes`` of memory."""
    parallel = knobs.tensor_parallel
    weights = 2.0 * shape.parameters / parallel
    adapters = 2.0 * shape.lora(knobs.lora_rank) * knobs.max_loras / parallel if knobs.lora_rank else 0.0
    cache = max(0.0, gpu_bytes * knobs.utilization - weights - adapters - WORKING)
    # Key-value heads cannot be split further than one a GPU; more GPUs then hold copies.
    per_token = shape.kv_bytes_per_token / min(parallel, shape.kv_heads)
    return SampleMemory(weights, adapters, cache, int(cache / per_token))


@dataclass(frozen=True)
class Traffic:
    """Bytes that one rank receives (or one replica, for ``publish``), and FLOPs of one rank, per micro-batch."""

    gather: float
    reduce: float
    publish: float
    flops: float


def traffic(shape: ModelShape, knobs: TrainKnobs) -> Traffic:
    """Traffic of one micro-batch on every rank, and of one publication to one replica."""
    shards = knobs.fsdp_size or knobs.ranks
    share = (shards - 1) / shards
    passes = 3 if knobs.checkpointing else 2
    gathers = 2  # forward and backward; recomputation happens while the layer is gathered for its backward
    gather = gathers * 2.0 * shape.parameters * share
    full = knobs.lora_rank == 0
    adapter = shape.lora(knobs.lora_rank) if not full else 0
    reduce = 4.0 * shape.parameters * share if full else 4.0 * adapter * (knobs.ranks - 1) / knobs.ranks
    publish = 2.0 * shape.parameters if full else 4.0 * adapter
    # Two FLOPs a weight forward, twice that backward for activations and weights; frozen weights need no weight gradient.
    work = 2 * shape.active * ((passes - 1) + (2 if full else 1))
    return Traffic(gather, reduce, publish, float(work * knobs.tokens))


def tokens_to_hide_gather(
    shape: ModelShape, knobs: TrainKnobs, flops_per_second: float, bytes_per_second: float
) -> int:
    """Tokens a micro-batch needs on each rank so that computing takes as long as gathering the weights."""
    moved = traffic(shape, knobs)
    seconds = moved.gather / bytes_per_second
    per_token = moved.flops / knobs.tokens
    return int(seconds * flops_per_second / per_token)
