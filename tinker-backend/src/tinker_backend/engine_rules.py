"""What must hold between the keys of ``engine.yaml`` before a GPU is touched. Free of torch, Ray and vLLM.

Every rule raises ValueError with the key, the value and the fix; ``EngineConfig`` turns it into a ConfigError.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Protocol

Finding = tuple[bool, str]
"""What a look at a configuration finds: whether it is well, and a sentence."""


class Strategy(Protocol):
    """``strategy_args``."""

    @property
    def strategy_name(self) -> str: ...
    @property
    def strategy_config(self) -> dict[str, Any]: ...


class ModelArgs(Protocol):
    """``model_args``."""

    @property
    def max_lora_rank(self) -> int: ...
    @property
    def dtype(self) -> str | None: ...


class Role(Protocol):
    """``RoleSection`` of config.py, which imports this module."""

    @property
    def strategy_args(self) -> Strategy: ...
    @property
    def model_args(self) -> ModelArgs: ...
    @property
    def device_mapping(self) -> list[int] | None: ...
    @property
    def num_gpus_per_worker(self) -> int: ...


class Cluster(Protocol):
    """``ClusterSection`` of config.py."""

    @property
    def temporary_folder(self) -> Path | None: ...


class Config(Protocol):
    """``EngineConfig`` of config.py."""

    @property
    def pretrain(self) -> str: ...
    @property
    def model_name(self) -> str | None: ...
    @property
    def aliases(self) -> list[str]: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def models(self) -> list[Any]: ...
    @property
    def sequence_length(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def num_gpus_per_node(self) -> int | None: ...
    @property
    def actor_train(self) -> Role: ...
    @property
    def actor_infer(self) -> Role: ...
    @property
    def reference(self) -> Role | None: ...
    @property
    def model_fields_set(self) -> set[str]: ...


STRATEGIES_OF_ROLE = {
    "actor_train": ("torch", "fsdp2_train"),
    "actor_infer": ("torch", "vllm"),
    "reference": ("torch", "fsdp2_train"),
}
VLLM_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts as max_lora_rank."""
LONGEST_RAY_FOLDER = 40
"""107 characters less those of ``/session_2026-11-30_12-00-00_000000_1234567/sockets/plasma_store``."""

KNOWN_KEYS = {
    "torch": {
        "dtype",
        "max_tokens_per_batch",
        "activation_checkpointing",
        "kv_cache_tokens",
        "max_batch_size",
        "prefill_tokens_per_step",
    },
    "fsdp2_train": {
        "dtype",
        "reduce_dtype",
        "fsdp_size",
        "reshard_after_forward",
        "offload_policy",
        "max_tokens_per_batch",
        "activation_checkpointing",
    },
    "vllm": {
        "dtype",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_loras",
        "max_cpu_loras",
        "max_logprobs",
        "load_format",
        "enforce_eager",
        "enable_prefix_caching",
        "enable_sleep_mode",
        "sleep_level",
        "enable_expert_parallel",
        "kv_cache_dtype",
        "block_size",
        "trust_remote_code",
        "cpu_kv_cache_gigabytes",
        "weight_transfer",
    },
}
_COUNTS = (
    "fsdp_size",
    "max_tokens_per_batch",
    "kv_cache_tokens",
    "max_batch_size",
    "prefill_tokens_per_step",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_loras",
    "max_cpu_loras",
    "max_logprobs",
    "block_size",
    "cpu_kv_cache_gigabytes",
)
_TEXTS = ("load_format", "kv_cache_dtype")
DTYPES = ("auto", "bfloat16", "bf16", "float32", "fp32")
_SWITCHES = (
    "activation_checkpointing",
    "reshard_after_forward",
    "enforce_eager",
    "enable_prefix_caching",
    "enable_sleep_mode",
    "enable_expert_parallel",
    "trust_remote_code",
)


def check_engine(config: Config) -> None:
    """Raises ValueError for the first rule that is broken."""
    _check_names(config)
    for name, role in roles(config).items():
        _check_strategy(name, role)
        _check_values(name, role)
        _check_dtypes(name, role)
        _check_devices(config, name, role)
    _check_nodes(config)
    _check_train(config)
    _check_infer(config)
    _check_reference(config)
    _check_overlap(config)


def roles(config: Config) -> dict[str, Role]:
    """The roles that are configured, by name."""
    named = {"actor_train": config.actor_train, "actor_infer": config.actor_infer, "reference": config.reference}
    return {name: role for name, role in named.items() if role is not None}


def strategy(role: Role) -> str:
    """Name of the strategy of a role."""
    return role.strategy_args.strategy_name


def options(role: Role) -> dict[str, Any]:
    """strategy_config of a role."""
    return role.strategy_args.strategy_config


def is_cluster(config: Config) -> bool:
    """Whether any role needs Ray."""
    return any(strategy(role) != "torch" for role in roles(config).values())


def has_trainer(config: Config) -> bool:
    """False for rollouts alone: vLLM samples and ``actor_train`` is left out of the file."""
    return strategy(config.actor_infer) == "torch" or "actor_train" in config.model_fields_set


def shared_devices(config: Config) -> list[int]:
    """Devices that trainer and sampler share; the two are colocated when there are any."""
    train, infer = config.actor_train.device_mapping, config.actor_infer.device_mapping
    return sorted(set(train or []) & set(infer or []))


def vllm_lora_rank(rank: int) -> int:
    """The smallest max_lora_rank of vLLM that holds adapters of ``rank``. Raises ValueError above 512."""
    for allowed in VLLM_LORA_RANKS:
        if rank <= allowed:
            return allowed
    raise ValueError(
        f"actor_train.model_args.max_lora_rank {rank} is more than vLLM serves ({VLLM_LORA_RANKS[-1]}): lower it to at "
        f"most {VLLM_LORA_RANKS[-1]}, or set actor_infer.strategy_args.strategy_name to torch"
    )


def _check_names(config: Config) -> None:
    names = [config.model_name or config.pretrain, *config.aliases]
    for model in config.models:
        names += [model.model_name or model.pretrain, *model.aliases]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"model_name, aliases, models: the name {twice[0]!r} is given twice; give every base model its own names"
        )


def _check_strategy(name: str, role: Role) -> None:
    possible = STRATEGIES_OF_ROLE[name]
    if strategy(role) not in possible:
        raise ValueError(
            f"{name}.strategy_args.strategy_name: {strategy(role)!r} cannot do this role; use {' or '.join(possible)}"
        )
    known = KNOWN_KEYS[strategy(role)]
    for key in options(role):
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.6)
            fix = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            raise ValueError(
                f"{name}.strategy_args.strategy_config.{key}: unknown to the {strategy(role)} strategy; {fix}"
            )


def _check_values(name: str, role: Role) -> None:
    given, at = options(role), f"{name}.strategy_args.strategy_config"
    for key in _COUNTS:
        value = given.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{at}.{key}: {value!r} must be a positive whole number")
    for key in _SWITCHES:
        if not isinstance(given.get(key, True), bool):
            raise ValueError(f"{at}.{key}: {given[key]!r} must be true or false")
    for key in _TEXTS:
        if not isinstance(given.get(key, ""), str):
            raise ValueError(f"{at}.{key}: {given[key]!r} must be a name, such as auto")
    if given.get("load_format") == "dummy":
        raise ValueError(f"{at}.load_format: dummy would sample from random weights; use auto")
    if given.get("max_cpu_loras", 2**31) < given.get("max_loras", 1):
        raise ValueError(
            f"{at}.max_cpu_loras: {given['max_cpu_loras']} is below max_loras {given['max_loras']}; raise it to at least that"
        )
    if given.get("max_num_batched_tokens", 2**31) < given.get("max_num_seqs", 1):
        raise ValueError(
            f"{at}.max_num_batched_tokens: {given['max_num_batched_tokens']} is below max_num_seqs "
            f"{given['max_num_seqs']}; every running sequence needs a token a step, so raise it or lower max_num_seqs"
        )
    share = given.get("gpu_memory_utilization", 0.5)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise ValueError(f"{at}.gpu_memory_utilization: {share!r} must be between 0 and 1, such as 0.85")
    if given.get("offload_policy") not in (None, False, "cpu"):
        raise ValueError(f"{at}.offload_policy: {given['offload_policy']!r} is unknown; use cpu, or leave it out")
    if given.get("weight_transfer", "files") not in ("files", "broadcast"):
        raise ValueError(f"{at}.weight_transfer: {given['weight_transfer']!r} is unknown; use files or broadcast")
    if given.get("sleep_level", 1) not in (1, 2):
        raise ValueError(f"{at}.sleep_level: {given['sleep_level']!r} must be 1 (weights to memory) or 2 (dropped)")


def _check_dtypes(name: str, role: Role) -> None:
    places = {
        f"{name}.model_args.dtype": role.model_args.dtype,
        f"{name}.strategy_args.strategy_config.dtype": options(role).get("dtype"),
    }
    for key, value in places.items():
        if value is not None and value not in DTYPES:
            raise ValueError(f"{key}: {value!r} is unknown; use auto, bfloat16 or float32")


def _check_devices(config: Config, name: str, role: Role) -> None:
    devices = role.device_mapping
    if strategy(role) != "torch" and not devices:
        raise ValueError(
            f"{name}.device_mapping: {strategy(role)} needs the numbers of its devices, such as 0-7; "
            "with `device: cpu` each number is one process"
        )
    if strategy(role) == "torch" and len(devices or ()) > 1:
        raise ValueError(
            f"{name}.device_mapping: {devices}, but the torch strategy computes on one device; name one, or set "
            f"{name}.strategy_args.strategy_name to {'vllm' if name == 'actor_infer' else 'fsdp2_train'}"
        )
    per_node = config.num_gpus_per_node
    if per_node == 0 and devices and config.device != "cpu" and is_cluster(config):
        raise ValueError(
            f"num_gpus_per_node: 0, but {name}.device_mapping names {len(devices)} devices; correct the count, or set "
            "`device: cpu`"
        )
    if devices and per_node is not None and config.device != "cpu":
        limit = config.num_nodes * per_node
        if max(devices) >= limit:
            raise ValueError(
                f"{name}.device_mapping names device {max(devices)}, but num_nodes {config.num_nodes} x "
                f"num_gpus_per_node {per_node} gives 0-{limit - 1}: correct the mapping or the counts"
            )
    if config.num_nodes > 1 and per_node is None and is_cluster(config):
        raise ValueError(
            f"num_gpus_per_node: missing; num_nodes {config.num_nodes} needs it to know which device is on which node"
        )


def _check_nodes(config: Config) -> None:
    """Every node of the cluster has work, and equally many ranks of a group that spans nodes."""
    folder = config.cluster.temporary_folder
    if folder is not None and len(str(folder)) > LONGEST_RAY_FOLDER:
        raise ValueError(
            f"cluster.temporary_folder: {folder} has {len(str(folder))} characters; Ray makes sockets below it, whose path may "
            f"have 107, so name a folder of at most {LONGEST_RAY_FOLDER}"
        )
    per_node, train, infer = config.num_gpus_per_node, config.actor_train, config.actor_infer
    if not is_cluster(config) or not per_node or config.device == "cpu":
        return
    mapped = {d for role in (train, infer) for d in role.device_mapping or []}
    idle = set(range(config.num_nodes)) - {device // per_node for device in mapped}
    if idle:
        raise ValueError(
            f"num_nodes: {config.num_nodes}, but no device_mapping names a device of node {min(idle)} (devices "
            f"{min(idle) * per_node}-{min(idle) * per_node + per_node - 1}); correct the mappings or the count"
        )
    if strategy(train) != "fsdp2_train":
        return
    nodes = [device // per_node for device in train.device_mapping or []]
    counts = {node: nodes.count(node) for node in sorted(set(nodes))}
    size = options(train).get("fsdp_size", len(nodes))
    if len(set(counts.values())) > 1 and any(count % size for count in counts.values()):
        shown = ", ".join(f"{count} on node {node}" for node, count in counts.items())
        raise ValueError(
            f"actor_train.device_mapping: {shown}; a group of {size} ranks (fsdp_size) that spans nodes needs equally many "
            "on each, so correct the mapping, or choose an fsdp_size that divides each of these counts"
        )


def _check_train(config: Config) -> None:
    role = config.actor_train
    if strategy(role) != "fsdp2_train":
        return
    devices = role.device_mapping or []
    if role.num_gpus_per_worker != 1:
        raise ValueError(
            f"actor_train.num_gpus_per_worker: {role.num_gpus_per_worker}; fsdp2_train runs one rank a GPU, so it must be 1"
        )
    size = options(role).get("fsdp_size", len(devices))
    if len(devices) % size:
        raise ValueError(
            f"actor_train.strategy_args.strategy_config.fsdp_size: {size} does not divide the {len(devices)} devices of "
            "actor_train.device_mapping; choose a divisor, or leave it out to shard over all of them"
        )
    if config.models:
        raise ValueError("models: fsdp2_train serves one base model; move the others to engines of their own")
    precise = options(role).get("reduce_dtype", "float32")
    if precise not in ("float32", "fp32", "bfloat16", "bf16"):
        raise ValueError(
            f"actor_train.strategy_args.strategy_config.reduce_dtype: {precise!r}; use float32 or bfloat16"
        )


def _check_infer(config: Config) -> None:
    role, at = config.actor_infer, "actor_infer.strategy_args.strategy_config"
    if strategy(role) != "vllm":
        return
    given, devices = options(role), role.device_mapping or []
    workers = given.get("tensor_parallel_size", role.num_gpus_per_worker) * given.get("pipeline_parallel_size", 1)
    if workers != role.num_gpus_per_worker:
        raise ValueError(
            f"actor_infer.num_gpus_per_worker: {role.num_gpus_per_worker}, but {at} asks for tensor_parallel_size x "
            f"pipeline_parallel_size = {workers} devices a replica; make the two equal"
        )
    replicas = len(devices) // role.num_gpus_per_worker
    if given.get("data_parallel_size", replicas) != replicas:
        raise ValueError(
            f"{at}.data_parallel_size: {given['data_parallel_size']}, but {len(devices)} devices with "
            f"{role.num_gpus_per_worker} a replica make {replicas} replicas; leave it out or correct device_mapping"
        )
    length = given.get("max_model_len", config.sequence_length)
    if length < config.sequence_length:
        raise ValueError(
            f"{at}.max_model_len: {length} is below sequence_length {config.sequence_length}: raise it, or lower "
            "sequence_length"
        )
    vllm_lora_rank(config.actor_train.model_args.max_lora_rank)
    if config.models:
        raise ValueError("models: the vllm strategy serves one base model; move the others to engines of their own")
    if config.num_gpus_per_node:
        for first in range(0, len(devices), role.num_gpus_per_worker):
            replica = devices[first : first + role.num_gpus_per_worker]
            if len({device // config.num_gpus_per_node for device in replica}) > 1:
                raise ValueError(
                    f"actor_infer.device_mapping: the replica on devices {replica} would span nodes of "
                    f"{config.num_gpus_per_node} GPUs; order the mapping so that each replica stays on one node"
                )


def _check_reference(config: Config) -> None:
    role = config.reference
    if role is None:
        return
    if strategy(role) != strategy(config.actor_train) or role.device_mapping != config.actor_train.device_mapping:
        raise ValueError(
            "reference: its logprobs come from the trainer's own frozen base weights, so strategy_name and "
            "device_mapping must be those of actor_train; copy them, or set `reference: null`"
        )


def _check_overlap(config: Config) -> None:
    mapping = config.actor_train.device_mapping
    if not is_cluster(config) and (mapping or config.actor_infer.device_mapping or [0]) != [0]:
        raise ValueError(
            f"actor_train.device_mapping: {mapping}, actor_infer.device_mapping: {config.actor_infer.device_mapping}, but the "
            "embedded engine takes the first visible GPU; leave both out, and choose with CUDA_VISIBLE_DEVICES"
        )
    alone = has_trainer(config) and strategy(config.actor_train) == "torch" and strategy(config.actor_infer) == "vllm"
    if alone and not mapping and config.device != "cpu":
        raise ValueError(
            "actor_train.device_mapping: missing; beside vllm the torch trainer must say which GPU it uses, such as [0]"
        )
    shared = shared_devices(config)
    if not shared:
        return
    names = (strategy(config.actor_train), strategy(config.actor_infer))
    if names == ("torch", "torch"):
        raise ValueError(
            f"actor_train.device_mapping and actor_infer.device_mapping share the devices {shared}: "
            "the embedded engine has one device; leave both mappings out"
        )
    given = options(config.actor_infer)
    if given.get("weight_transfer") == "broadcast":
        raise ValueError(
            f"actor_infer.strategy_args.strategy_config.weight_transfer: broadcast is not possible where trainer and "
            f"sampler share the devices {shared}; use files, or give each role its own devices"
        )
    if names[1] == "vllm" and config.device != "cpu" and given.get("enable_sleep_mode") is False:
        raise ValueError(
            f"actor_infer.strategy_args.strategy_config.enable_sleep_mode: false, but trainer and sampler share the "
            f"devices {shared} and so must take turns; leave the key out, or give each role its own devices"
        )
