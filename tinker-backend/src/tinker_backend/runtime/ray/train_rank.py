"""One rank of the FSDP2 trainer. Every method is called on all ranks with the same arguments, and does the same collectives.

A loss that fails (a custom graph, a value out of range) must not keep a rank from its collectives, so it is noted, its
gradient becomes zero, the ranks agree that the pass failed, and each request is tried alone. Any other exception leaves the
modules in the middle of an iteration: they are reset, and the caller decides whether all ranks failed alike.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from tinker_backend.runtime.architecture import read_architecture
from tinker_backend.runtime.attention import PackLayout, packed_attention
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.datum_pack import MicroBatch, PreparedRequest, by_blame, micro_batches, prepare
from tinker_backend.runtime.decoder import Decoder
from tinker_backend.runtime.head import Head
from tinker_backend.runtime.lora import AdapterLayout
from tinker_backend.runtime.micro_batch_pass import MicroBatchPass, Tally
from tinker_backend.runtime.ray.data_shares import Partial, share_of
from tinker_backend.runtime.ray.prompt_scoring import AdapterShelf, scores_of
from tinker_backend.runtime.ray.run_folders import load_sharded_run, save_sharded_run
from tinker_backend.runtime.ray.sharded_decoder import ShardedDecoder, ShardingOptions, load_sharded
from tinker_backend.runtime.ray.sharded_run import AdapterRun, FullRun, ShardedRun, world_sum
from tinker_backend.runtime.ray.weight_broadcast import Channel, pieces_of, send
from tinker_backend.runtime.roles import (
    LossRequest,
    OptimParams,
    RunSpec,
    RuntimeFault,
    SampleRequest,
    SampleResult,
    SavedWeights,
    SaveKind,
)
from tinker_backend.runtime.training_run import FullLayout

log = logging.getLogger(__name__)

Outcome = Partial | RuntimeFault


@dataclass(frozen=True)
class RankSettings:
    """What a rank needs to know to take its place. ``folder`` is a model folder that its node can read."""

    rank: int
    ranks: int
    address: str
    """``tcp://host:port`` where rank 0 listens."""
    folder: str
    name: str
    context: int
    max_lora_rank: int
    dtype: str = "float32"
    reduce_dtype: str = "float32"
    device: str = "cpu"
    fsdp_size: int | None = None
    reshard_after_forward: bool = True
    offload: bool = False
    checkpointing: bool = False
    max_tokens_per_batch: int = 16384
    threads: int | None = None
    timeout_seconds: float = 1800


class TrainRank:
    """Holds this rank's shards of the base and of all runs."""

    def __init__(self, settings: RankSettings) -> None:
        self.settings = settings
        if settings.threads:
            torch.set_num_threads(settings.threads)
        device = torch.device(settings.device)
        if device.type == "cuda":
            torch.cuda.set_device(0)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=settings.address,
            rank=settings.rank,
            world_size=settings.ranks,
            timeout=datetime.timedelta(seconds=settings.timeout_seconds),
        )
        size = settings.fsdp_size or settings.ranks
        shape, names = ((settings.ranks,), ("shard",))
        if size != settings.ranks:
            shape, names = ((settings.ranks // size, size), ("replicate", "shard"))  # type: ignore[assignment]
        self.mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        self.shard_group = self.mesh.get_group("shard")
        dtype = getattr(torch, settings.dtype)
        self.options = ShardingOptions(
            self.mesh, dtype, getattr(torch, settings.reduce_dtype), settings.reshard_after_forward, settings.offload
        )
        folder = Path(settings.folder)
        architecture = read_architecture(folder)
        context = min(settings.context, architecture.max_positions)
        decoder = Decoder(architecture, device, context)
        self.base = BaseModel(
            settings.name, (), folder, architecture, {}, decoder, dtype, device, context, settings.max_lora_rank
        )
        self.module = load_sharded(folder, decoder, self.options, trained=False)
        self.runs: dict[str, ShardedRun] = {}
        self.shelf = AdapterShelf(self.base)

    def ready(self) -> int:
        """Answers once the base is loaded; the process id."""
        return os.getpid()

    def release(self) -> None:
        """Gives back the gathered weights of the roots, and the GPU memory that torch keeps for later."""
        for module in (self.module, *(run.module for run in self.runs.values() if isinstance(run, FullRun))):
            module.reshard()  # type: ignore[operator]
        if self.base.device.type == "cuda":
            torch.cuda.empty_cache()

    # --- runs

    def run(self, run_id: str) -> ShardedRun:
        """The run. Raises RuntimeFault (server) when it is not loaded."""
        if run_id not in self.runs:
            raise RuntimeFault(f"run {run_id!r} is not loaded in the runtime", "server")
        return self.runs[run_id]

    def create(self, spec: RunSpec) -> None:
        """Adds a run. The adapter's seed must be given, as all ranks draw the same values."""
        if spec.lora.rank == 0:
            self.runs[spec.run_id] = self.new_full_run(spec)
            return
        layout = AdapterLayout(self.base.architecture, spec.lora)
        run = AdapterRun(spec, self.base, layout, torch.empty(0))
        run.values = run.padded(layout.initial().to(self.base.device))
        self.runs[spec.run_id] = run

    def new_full_run(self, spec: RunSpec, folder: Path | None = None) -> FullRun:
        """A run over all weights of the base, or of another folder of its architecture."""
        module = load_sharded(folder or self.base.folder, self.base.decoder, self.options, trained=True)
        return FullRun(spec, self.base, FullLayout(self.base.architecture), module, self.shard_group)

    def drop(self, run_id: str) -> None:
        """Forgets a run."""
        self.runs.pop(run_id, None)

    def optim_step(self, run_id: str, params: OptimParams) -> dict[str, float]:
        """One AdamW step of a run."""
        return self.run(run_id).optim_step(params)

    def save(self, run_id: str, path: str, kind: SaveKind) -> SavedWeights | None:
        """Writes a folder atomically; rank 0 tells what it holds."""
        return save_sharded_run(self.run(run_id), path, kind)

    def send_weights(self, run_id: str, channel: Channel) -> None:
        """Broadcasts all weights of a run to samplers, one tensor in flight at a time."""
        run = self.run(run_id)
        assert isinstance(run, FullRun)
        whole = run.gathered()
        if self.settings.rank == 0:
            plan, dtype = self.base.architecture, self.base.dtype
            send((piece for name, fused in whole for piece in pieces_of(plan, name, fused, dtype)), channel)
        else:
            for _ in whole:
                pass

    def load(self, spec: RunSpec, path: str, optimizer: bool) -> None:
        """Creates or overwrites a run from a folder, whatever the number of ranks that wrote it."""
        self.runs[spec.run_id] = load_sharded_run(self, spec, path, optimizer)

    def score(self, request: SampleRequest, path: str | None) -> SampleResult:
        """Scores of a prompt. All ranks compute the same, as all must gather the layers."""
        tokens = torch.tensor(request.tokens.astype("int64"), device=self.base.device)
        layout, scale = PackLayout([len(tokens)], self.base.device), self.base.decoder.scale
        results: list[SampleResult] = []

        def collect(head: Head, hidden: Tensor, *_: Tensor | None) -> None:
            results.append(scores_of(request, head, hidden))

        with torch.no_grad():
            self.module(
                tokens,
                layout.positions.to(self.base.device),
                lambda _, q, k, v: packed_attention(q, k, v, layout, scale),
                self.shelf.segments(path, len(tokens)),
                collect,
                False,
            )
        return results[0]

    # --- passes

    def forward_backward(self, batch: list[LossRequest]) -> list[Outcome]:
        """This rank's part of every request, or the request's fault."""
        results: list[Outcome | None] = [None] * len(batch)
        groups: dict[str, list[PreparedRequest]] = {}
        for index, request in enumerate(batch):
            try:
                run = self.run(request.run_id)
                prepared = prepare(index, request, run)  # type: ignore[arg-type]
            except RuntimeFault as fault:
                results[index] = fault
                continue
            groups.setdefault(f"full {request.run_id}" if run.is_full else "base", []).append(prepared)
        for group in groups.values():
            group.sort(key=lambda p: p.request.run_id)
            self._guarded(group, results)
        return [RuntimeFault("the request was lost in the trainer") if r is None else r for r in results]

    def _guarded(self, group: list[PreparedRequest], results: list[Outcome | None]) -> None:
        failure = self._pass(group, results)
        if failure is None:
            return
        if len(group) == 1:
            results[group[0].index] = failure
            return
        for prepared in group:
            self._guarded([prepared], results)

    def _pass(self, group: list[PreparedRequest], results: list[Outcome | None]) -> RuntimeFault | None:
        """One pass over a group on all ranks; a fault when a loss failed on any of them, and then nothing is kept."""
        differentiates = any(not p.request.forward_only for p in group)
        shares = share_of(group, self.settings.ranks, self.settings.rank)
        tallies = {p.index: Tally() for p in group}
        batches: list[MicroBatch] = []
        if shares:
            batches = micro_batches([s.prepared for s in shares], self.settings.max_tokens_per_batch, self.base.device)
        count = torch.tensor(len(batches), device=self.base.device)
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        # Every rank must gather and reduce as often as the others: a rank with less work computes on nothing.
        batches += [_nothing(self.base.device)] * (int(count) - len(batches))
        run: Any = group[0].run
        module = run.module if isinstance(run, FullRun) else self.module
        earlier = run.take_gradients() if isinstance(run, FullRun) else {}
        trained = sorted({p.request.run_id for p in group if not p.request.forward_only})
        staged: dict[str, Tensor] = {}
        if not isinstance(run, FullRun):
            staged = {name: torch.zeros(self._layout(name).size, device=self.base.device) for name in trained}
        failure: Exception | None = None
        try:
            for batch in batches:
                one = _ShardedPass(batch, run, staged, tallies, self.settings.checkpointing, differentiates)
                one.compute(module)
                failure = failure or one.failure
        except BaseException:
            self._reset(module)
            if isinstance(run, FullRun):
                run.take_gradients()
                run.add_gradients(earlier)
            raise
        failed = world_sum(torch.tensor(int(failure is not None), device=self.base.device))
        if int(failed):
            if isinstance(run, FullRun):
                run.take_gradients()
                run.add_gradients(earlier)
            return _fault(failure)
        broken = self._keep(run, staged, earlier, trained)
        places = {share.prepared.index: share.places for share in shares}
        guilty, suspects = by_blame(group, broken)
        for prepared in group:
            results[prepared.index] = Partial(places.get(prepared.index, []), tallies[prepared.index])
        for prepared in guilty:
            results[prepared.index] = RuntimeFault(
                "the gradient is not finite; nothing was accumulated. "
                "Check logprobs and advantages for extreme values, or lower the learning rate",
                "user",
            )
        for prepared in suspects:
            self._guarded([prepared], results)
        return None

    def _layout(self, run_id: str) -> AdapterLayout:
        run = self.run(run_id)
        assert isinstance(run, AdapterRun)
        return run.layout

    def _keep(
        self, run: ShardedRun, staged: Mapping[str, Tensor], earlier: dict[str, Tensor | None], trained: list[str]
    ) -> set[str]:
        """Adds the pass's gradients to the runs; the runs whose gradient is not finite, which gain nothing."""
        if isinstance(run, FullRun):
            sound = all(bool(torch.isfinite(g.sum())) for g in run.local_gradients())
            if int(world_sum(torch.tensor(int(not sound), device=self.base.device))):
                run.take_gradients()
                run.add_gradients(earlier)
                return set(trained)
            run.add_gradients(earlier)
            run.has_gradients = run.has_gradients or bool(trained)
            return set()
        broken: set[str] = set()
        for run_id, flat in staged.items():
            one = self.run(run_id)
            assert isinstance(one, AdapterRun)
            part = one.reduce(flat)
            unsound = torch.tensor(int(not bool(torch.isfinite(part.sum()))), device=self.base.device)
            if int(world_sum(unsound)):
                broken.add(run_id)
            else:
                one.add_gradients(part)
        return broken

    def _reset(self, module: ShardedDecoder) -> None:
        """Brings a module that was left in the middle of an iteration back to its start."""
        reset: Any = getattr(module, "reset_iter_state", None)
        if reset is not None:
            reset()
        for part in (module, *module.layers):
            part.reshard()


def _fault(failure: Exception | None) -> RuntimeFault:
    if failure is None:
        return RuntimeFault("forward_backward failed on another rank", "unknown")
    if isinstance(failure, RuntimeFault):
        return failure
    return RuntimeFault(f"forward_backward failed: {type(failure).__name__}: {failure}")


def _nothing(device: torch.device) -> MicroBatch:
    """A micro-batch of one token that no loss looks at."""
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    return MicroBatch(zero, zero.unsqueeze(1), [1], [])


class _ShardedPass(MicroBatchPass):
    """The pass of the embedded trainer over gathered weights."""

    def __init__(
        self,
        batch: MicroBatch,
        run: Any,
        staged: Mapping[str, Tensor],
        tallies: Mapping[int, Tally],
        checkpointing: bool,
        differentiates: bool,
    ) -> None:
        self.batch, self.run, self.staged, self.tallies = batch, run, staged, tallies
        self.base, self.checkpointing = run.base, checkpointing
        self.layout = PackLayout(batch.lengths, self.base.device)
        self.on = differentiates
        self.failure: Exception | None = None

    @property
    def _differentiates(self) -> bool:
        """Agreed for the whole pass: a backward is a collective."""
        return self.on

    def compute(self, module: ShardedDecoder) -> None:
        """Forward, losses and, when anything is trained, backward."""
        layout, scale = self.layout, self.base.decoder.scale
        segments = [] if self.run.is_full else self._segments()
        with torch.set_grad_enabled(self.on):
            loss = module(
                self.batch.tokens,
                layout.positions.to(self.base.device),
                lambda _, q, k, v: packed_attention(q, k, v, layout, scale),
                segments,
                self._guarded_losses,
                self.checkpointing,
            )
        if self.on:
            torch.autograd.backward(loss)

    def _guarded_losses(self, head: Head, hidden: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor | None:
        try:
            return self._losses(head, hidden.detach(), weight, bias)
        except Exception as error:
            log.exception("a loss failed")
            self.failure = error
            return None
