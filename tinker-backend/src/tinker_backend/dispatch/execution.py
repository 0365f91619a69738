"""How each kind of operation of a run is carried out in the runtime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoints.folders import file_sizes, link_tree, remove_tree
from ..checkpoints.paths import Kind, TinkerPath
from ..checkpoints.store import Checkpoint, require_kind
from ..errors import ApiError, OperationFailure
from ..runtime.roles import RunSpec, RuntimeFault
from ..server.principal import Principal
from .link import RuntimeLink
from .promises import Tokens
from .run import Operation, Run
from .services import Services


@dataclass
class Outcome:
    """A result or an OperationFailure, and ledger jobs that belong to it."""

    result: Any
    records: list[Callable[..., Any]] = field(default_factory=list)
    tokens: Tokens = Tokens()


def failure_of(fault: RuntimeFault | ApiError) -> OperationFailure:
    """A fault as the client will read it."""
    if isinstance(fault, ApiError):
        return OperationFailure(str(fault), "user" if fault.status < 500 else "server")
    return OperationFailure(str(fault), fault.category)


async def execute(services: Services, run: Run, group: list[Operation], link: RuntimeLink) -> list[Outcome]:
    """Runs the operations, which are several only for forward_backward. Raises RuntimeGone, TimeoutError."""
    first = group[0]
    if first.kind in ("forward_backward", "forward"):
        results = await services.batcher.forward_backward(run.spec.base_model, group, link)
        return [
            Outcome(failure_of(result) if isinstance(result, RuntimeFault) else result, tokens=Tokens(operation.tokens))
            for operation, result in zip(group, results, strict=True)
        ]
    try:
        return [await _EXECUTORS[first.kind](services, run, first, link)]
    except (RuntimeFault, ApiError) as fault:
        return [Outcome(failure_of(fault))]
    except OSError as error:
        return [Outcome(OperationFailure(f"the disk of the server refused: {error.strerror}", "server"))]


async def _create(services: Services, run: Run, operation: Operation, link: RuntimeLink) -> Outcome:
    await services.batcher.other(link, "create", run=run.spec)
    return Outcome({"model_id": run.run_id, "type": "create_model"})


async def pinned(services: Services, run: Run, operation: Operation) -> Path:
    """The weights of a load, linked to a place of the run's own, so that a rebuild finds them after their deletion."""
    target = services.store.folders.snapshot(run.run_id, f"load-{operation.seq_id}")
    if not target.is_dir():
        path = TinkerPath.parse(operation.params["path"])
        require_kind(path, "training", "load_weights")
        checkpoint = await services.store.readable(path, Principal(run.owner))
        check_loadable(run.spec, checkpoint)
        await asyncio.to_thread(link_tree, checkpoint.folder, target)
    return target


def check_loadable(spec: RunSpec, checkpoint: Checkpoint) -> None:
    """Raises BadRequest when the checkpoint is of another model or adapter shape than the run."""
    from ..errors import BadRequest

    saved = checkpoint.spec
    if saved["base_model"] != spec.base_model:
        raise BadRequest(f"{checkpoint.path} is of base model {saved['base_model']!r}, the run of {spec.base_model!r}")
    for key in ("rank", "train_unembed", "train_mlp", "train_attn"):
        if saved["lora"][key] != getattr(spec.lora, key):
            raise BadRequest(
                f"{checkpoint.path} has LoRA {key} {saved['lora'][key]}, the run {getattr(spec.lora, key)}: "
                "make a training client from the checkpoint instead (create_training_client_from_state)"
            )


async def _load_new(services: Services, run: Run, operation: Operation, link: RuntimeLink) -> Outcome:
    folder = await pinned(services, run, operation)
    optimizer = bool(operation.params["optimizer"])
    await services.batcher.other(link, "load", run=run.spec, path=str(folder), optimizer=optimizer)
    return Outcome({"model_id": run.run_id, "path": operation.params["path"], "type": "load_weights"})


async def _optim_step(services: Services, run: Run, operation: Operation, link: RuntimeLink) -> Outcome:
    metrics = await services.batcher.other(link, "optim_step", run_id=run.run_id, params=operation.params["params"])
    return Outcome({"metrics": metrics or {}, "type": "optim_step"})


async def _save(services: Services, run: Run, operation: Operation, link: RuntimeLink, kind: Kind) -> Checkpoint | Any:
    params = operation.params
    path = TinkerPath(run.run_id, kind, params["name"])
    existing = await services.store.find(path)
    if existing is not None and not params.get("overwrite"):
        fix = "pass overwrite=True, " if kind == "training" else ""
        raise RuntimeFault(f"{path} exists already; {fix}choose another name, or delete it first", "user")
    folder = services.store.free_folder(path, existing.folder if existing else None)
    await asyncio.to_thread(remove_tree, folder)  # left behind by a server that died before it noted the save
    saved = await services.batcher.other(link, "save", run_id=run.run_id, path=str(folder), kind=kind)
    now, ttl = time.time(), params.get("ttl_seconds")
    checkpoint = Checkpoint(
        path=path,
        owner=run.owner,
        folder=folder,
        files=dict(saved.files) or file_sizes(folder),
        size_bytes=saved.size_bytes,
        spec={**asdict(run.spec), "run_id": path.run_id},
        requested_model=run.requested_model,
        user_metadata=params.get("user_metadata"),
        created_at=now,
        expires_at=None if ttl is None else now + ttl,
        public=False,
    )
    if existing is not None:
        asyncio.get_running_loop().call_later(5, lambda: remove_tree(existing.folder))
    return checkpoint


async def _save_weights(services: Services, run: Run, operation: Operation, link: RuntimeLink) -> Outcome:
    checkpoint = await _save(services, run, operation, link, "training")
    result = {"path": str(checkpoint.path), "type": "save_weights"}
    return Outcome(result, [services.store.insertion(checkpoint)])


async def _save_sampler(services: Services, run: Run, operation: Operation, link: RuntimeLink) -> Outcome:
    checkpoint = await _save(services, run, operation, link, "sampler")
    result = {"path": str(checkpoint.path), "type": "save_weights_for_sampler"}
    return Outcome(result, [services.store.insertion(checkpoint)])


async def _save_external(services: Services, run: Run, operation: Operation, link: RuntimeLink) -> Outcome:
    checkpoint = await _save(services, run, operation, link, "external")
    result = {"path": str(checkpoint.path), "size_bytes": checkpoint.size_bytes, "type": "save_weights_external"}
    return Outcome(result, [services.store.insertion(checkpoint)])


async def _publish(services: Services, run: Run, operation: Operation, link: RuntimeLink) -> Outcome:
    version = operation.params["sampler_id"]
    await services.batcher.other(link, "publish", run_id=run.run_id, version=version)
    services.samplers.published(version, link.generation)
    run.unsaved_versions.append(version)
    return Outcome({"sampling_session_id": version, "type": "save_weights_for_sampler"})


async def _load_weights(services: Services, run: Run, operation: Operation, link: RuntimeLink) -> Outcome:
    await _load_new(services, run, operation, link)
    return Outcome({"path": operation.params["path"], "model_id": run.run_id, "type": "load_weights"})


async def _unload(services: Services, run: Run, operation: Operation, link: RuntimeLink) -> Outcome:
    # The worker writes the run out first; a later request brings it back.
    return Outcome({"model_id": run.run_id, "type": "unload_model"})


_EXECUTORS: dict[str, Callable[[Services, Run, Operation, RuntimeLink], Awaitable[Outcome]]] = {
    "create": _create,
    "load_new": _load_new,
    "optim_step": _optim_step,
    "save_weights": _save_weights,
    "save_sampler": _save_sampler,
    "save_external": _save_external,
    "publish": _publish,
    "load_weights": _load_weights,
    "unload": _unload,
}
