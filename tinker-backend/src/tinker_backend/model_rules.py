"""What must hold between ``engine.yaml`` and the base models that it names. Free of torch."""

from __future__ import annotations

from pathlib import Path

from .config import EngineConfig
from .engine_rules import Finding, strategy
from .models import smollm2
from .models.location import cache_folder
from .runtime.architecture import UnsupportedModel, read_architecture
from .scaling.model_shape import ModelShape
from .scaling.plan import shape_of


def model_findings(config: EngineConfig) -> list[Finding]:
    """Whether the models can be had and served, as far as that is known without loading them."""
    found = [_model(pretrain, config) for pretrain in (config.pretrain, *(model.pretrain for model in config.models))]
    shape = shape_of(config)
    return found if shape is None else found + _divided(config, shape)


def _model(pretrain: str, config: EngineConfig) -> Finding:
    folder = Path(pretrain).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            return False, f"pretrain: model folder {folder} holds no config.json; give one that does, or a hub id"
        try:
            positions = read_architecture(folder).max_positions
        except UnsupportedModel as error:
            return False, f"pretrain: {error}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return False, f"pretrain: config.json of {folder} cannot be read: {type(error).__name__}: {error}"
        if config.sequence_length > positions:
            return True, (
                f"model folder {folder} has {positions} positions, which bound requests before sequence_length "
                f"{config.sequence_length} does"
            )
        return True, f"model folder {folder} holds config.json"
    if pretrain.rsplit("/", 1)[-1] == smollm2.NAME:
        made = smollm2.is_complete(cache_folder() / smollm2.NAME)
        return True, f"model {pretrain}: {'its folder is made' if made else 'made from a package at the first start'}"
    if pretrain.startswith(("/", ".", "~")) or pretrain.count("/") != 1:
        return False, f"pretrain {pretrain!r}: no such folder; give a model folder, a hub id or {smollm2.NAME!r}"
    return True, f"model {pretrain}: taken from {config.model_download_type} or its cache at the first start"


def _divided(config: EngineConfig, shape: ModelShape) -> list[Finding]:
    """Whether experts can be computed, and heads and layers be shared out to a replica's GPUs."""
    if shape.experts and not Path(config.pretrain).is_dir():
        return [
            (
                False,
                f"pretrain: {config.pretrain} has {shape.experts} experts a layer, which no strategy here computes; choose a dense "
                "model",
            )
        ]
    if strategy(config.actor_infer) != "vllm":
        return []
    given = config.actor_infer.strategy_args.strategy_config
    width = given.get("tensor_parallel_size", config.actor_infer.num_gpus_per_worker)
    depth = given.get("pipeline_parallel_size", 1)
    possible = [
        n for n in range(1, shape.heads + 1) if shape.heads % n == 0 and not (shape.kv_heads % n and n % shape.kv_heads)
    ]
    if width not in possible:
        return [
            (
                False,
                f"actor_infer.num_gpus_per_worker: {width} GPUs cannot share the {shape.heads} heads ({shape.kv_heads} of keys and "
                f"values) of {config.pretrain}; choose one of {', '.join(map(str, possible))}",
            )
        ]
    if depth > shape.layers:
        return [
            (
                False,
                f"actor_infer.strategy_args.strategy_config.pipeline_parallel_size: {depth} is more than the {shape.layers} layers of "
                f"{config.pretrain}; lower it",
            )
        ]
    return []
