"""Runs of all ranks on disk.

Adapters, and what samplers and exports read, are written by rank 0 in the folders of ``runtime.weight_files``. The training
state of all weights is written sharded (``state/``, torch's distributed checkpoint), every rank its part, and is read by any
number of ranks; all ranks must see the folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.tensor import DTensor

from tinker_backend.runtime.ray.sharded_run import AdapterRun, FullRun, ShardedRun, local
from tinker_backend.runtime.roles import RunSpec, RuntimeFault, SavedWeights, SaveKind
from tinker_backend.runtime.training_run import TrainingRun
from tinker_backend.runtime.weight_files import load_run, put_in_place, read_manifest, save_run, verify, write_manifest

if TYPE_CHECKING:
    from tinker_backend.runtime.ray.train_rank import TrainRank

_STATE = "state"


def save_sharded_run(run: ShardedRun, path: str, kind: SaveKind) -> SavedWeights | None:
    """Writes the folder ``path`` atomically; what it holds on rank 0, None elsewhere."""
    if isinstance(run, AdapterRun):
        moments = kind == "training"
        whole = TrainingRun(
            run.spec,
            run.base,
            run.layout,
            run.values[: run.layout.size],
            run.whole(run.gradients) if moments else None,
            run.whole(run.exp_avg) if moments else None,
            run.whole(run.exp_avg_sq) if moments else None,
            run.step,
        )
        return _on_first_rank(lambda: save_run(whole, path, kind))
    if kind == "training":
        return _save_state(run, path)
    values = _gathered(run)
    return _on_first_rank(lambda: save_run(TrainingRun(run.spec, run.base, run.layout, values), path, kind))


def _on_first_rank(write: Any) -> SavedWeights | None:
    """Runs ``write`` on rank 0; every rank raises its fault, so that all go on alike."""
    outcome: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            outcome = [write()]
        except RuntimeFault as fault:
            outcome = [(str(fault), fault.category)]
    dist.broadcast_object_list(outcome, 0)
    if isinstance(outcome[0], tuple):
        raise RuntimeFault(*outcome[0])
    return outcome[0] if dist.get_rank() == 0 else None


def _gathered(run: FullRun) -> Tensor:
    """All weights in one float32 vector on the CPU of rank 0 (empty elsewhere), one tensor in flight at a time."""
    first = dist.get_rank() == 0
    flat = torch.empty(run.layout.size if first else 0)
    views = run.layout.tensors(flat) if first else {}
    for name, whole in run.gathered():
        if first:
            views[name].copy_(whole)
    return flat


def _state_of(run: FullRun, moments: bool, gradients: bool) -> dict[str, Tensor]:
    """Tensors of a run's state as DTensors in the layout of its shards, by name."""
    state: dict[str, Tensor] = {}
    for name, parameter in run.module.shards().items():
        state[f"values.{name}"] = parameter.data
        if moments:
            for kind, held in (("exp_avg", run.exp_avg), ("exp_avg_sq", run.exp_avg_sq)):
                if name not in held:
                    held[name] = torch.zeros_like(local(parameter.data))
                state[f"{kind}.{name}"] = _like(parameter.data, held[name])
        if gradients:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter.data)
            state[f"gradients.{name}"] = parameter.grad
    return state


def _like(pattern: Tensor, shard: Tensor) -> Tensor:
    if not isinstance(pattern, DTensor):
        return shard
    return DTensor.from_local(
        shard, pattern.device_mesh, pattern.placements, run_check=False, shape=pattern.shape, stride=pattern.stride()
    )


def _save_state(run: FullRun, path: str) -> SavedWeights | None:
    target = Path(path)
    staged = target.parent / f".{target.name}.sharded.tmp"

    def prepare() -> None:
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)

    _on_first_rank(prepare)
    facts = {"moments": bool(run.exp_avg), "gradients": run.has_gradients}
    dcp.save(_state_of(run, **facts), checkpoint_id=str(staged / _STATE))

    def finish() -> SavedWeights:
        (staged / "sharded.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
        write_manifest(run.spec, run.base, run.step, staged, "training")
        files = {str(p.relative_to(staged)): p.stat().st_size for p in sorted(staged.rglob("*")) if p.is_file()}
        put_in_place(staged, target)
        return SavedWeights(str(target), sum(files.values()), files)

    return _on_first_rank(finish)


def load_sharded_run(rank: TrainRank, spec: RunSpec, path: str, optimizer: bool) -> ShardedRun:
    """A run from a folder. Raises RuntimeFault (user) when it does not fit, (server) when it is damaged."""
    folder = Path(path)
    if (folder / _STATE).is_dir():
        return _load_state(rank, spec, folder, optimizer)
    manifest = read_manifest(path)
    if manifest["lora"]["rank"] == 0 and spec.lora.rank == 0:
        if optimizer and (folder / "optimizer.safetensors").is_file():
            raise RuntimeFault(
                f"{path} holds the optimizer of an embedded engine; load it without the optimizer", "user"
            )
        return rank.new_full_run(spec, folder)
    whole = load_run(spec, rank.base, path, optimizer)
    run = AdapterRun(whole.spec, rank.base, whole.layout, torch.empty(0), step=whole.step)  # type: ignore[arg-type]
    run.values = run.padded(whole.values)
    for name in ("gradients", "exp_avg", "exp_avg_sq"):
        held = getattr(whole, name)
        setattr(run, name, None if held is None else run.slice(run.padded(held)).clone())
    return run


def _load_state(rank: TrainRank, spec: RunSpec, folder: Path, optimizer: bool) -> FullRun:
    manifest = read_manifest(str(folder))
    if manifest["lora"]["rank"] != spec.lora.rank:
        raise RuntimeFault(
            f"{folder} was saved with rank {manifest['lora']['rank']}, the run has rank {spec.lora.rank}", "user"
        )
    _on_first_rank(lambda: verify(folder, manifest))
    run = rank.new_full_run(spec)
    facts = json.loads((folder / "sharded.json").read_text(encoding="utf-8"))
    moments, gradients = optimizer and facts["moments"], optimizer and facts["gradients"]
    dcp.load(_state_of(run, moments, gradients), checkpoint_id=str(folder / _STATE))
    if optimizer:
        run.step, run.has_gradients = int(manifest["step"]), gradients
    return run
