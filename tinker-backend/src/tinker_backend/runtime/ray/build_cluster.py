"""Builds the cluster's engine from ``engine.yaml``: Ray, trainer, sampler, and what ``hello`` tells of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tinker_backend.config import EngineConfig
from tinker_backend.engine_rules import has_trainer, options, shared_devices, strategy, vllm_lora_rank
from tinker_backend.models.location import resolve_model
from tinker_backend.runtime.architecture import read_architecture
from tinker_backend.runtime.base_model import BaseModel, load_base_model
from tinker_backend.runtime.decoder import Decoder
from tinker_backend.runtime.hardware import chosen_threads, pick_device, pick_dtype
from tinker_backend.runtime.ray.cluster_engine import ClusterEngine
from tinker_backend.runtime.ray.fsdp_trainer import FsdpTrainer
from tinker_backend.runtime.ray.local_trainer import LocalTrainer
from tinker_backend.runtime.ray.placement import place, placement_problems
from tinker_backend.runtime.ray.ray_cluster import ActorLost, RayCluster
from tinker_backend.runtime.ray.samplers import ClusterSampler, LocalSampler, RemoteSampler
from tinker_backend.runtime.ray.train_rank import RankSettings
from tinker_backend.runtime.ray.turns import Turns
from tinker_backend.runtime.ray.versions import installed, problems
from tinker_backend.runtime.ray.vllm_replica import ReplicaSettings, eos_of
from tinker_backend.runtime.ray.vllm_sampler import VllmSampler
from tinker_backend.runtime.ray.weight_sync import ExchangeFolder
from tinker_backend.runtime.roles import RuntimeFault
from tinker_backend.runtime.torch_sampler import TorchSampler
from tinker_backend.runtime.torch_trainer import TorchTrainer
from tinker_backend.scaling.estimate import DEFAULT_UTILIZATION
from tinker_backend.scaling.plan import DEFAULT_PACK_TOKENS

log = logging.getLogger(__name__)

_OWN_KEYS = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "sleep_level", "max_model_len"}
_OWN_KEYS |= {"cpu_kv_cache_gigabytes", "weight_transfer", "dtype", "enable_sleep_mode"}


@dataclass(frozen=True)
class BuiltCluster:
    """An engine and the facts that ``hello`` tells."""

    engine: ClusterEngine
    device: torch.device
    dtype: torch.dtype
    threads: int
    bases: list[BaseModel]


def build_cluster(config: EngineConfig) -> BuiltCluster:
    """Starts everything that the configuration asks for. Raises RuntimeFault with a sentence that names key and fix."""
    wrong = problems(config, installed()) + placement_problems(config)
    if wrong:
        raise RuntimeFault("; ".join(wrong), "user")
    started = time.monotonic()
    builder = _Builder(config)
    try:
        return builder.build()
    except BaseException:
        builder.close()
        raise
    finally:
        log.info("the cluster took %.1f s to start", time.monotonic() - started)


class _Builder:
    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.trains = has_trainer(config)
        self.fsdp = self.trains and strategy(config.actor_train) == "fsdp2_train"
        self.vllm = strategy(config.actor_infer) == "vllm"
        self.on_gpus = config.device != "cpu"
        self.threads = config.threads or chosen_threads()
        torch.set_num_threads(self.threads)
        self.folder = resolve_model(config.pretrain, config.model_download_type)
        given = Path(config.pretrain).expanduser().is_dir()
        self.name = config.model_name or (self.folder.name if given else config.pretrain)
        self.device = self._own_device()
        computing = torch.device("cuda") if self.on_gpus else torch.device("cpu")
        wanted = config.actor_train.model_args.dtype or options(config.actor_train).get("dtype", "auto")
        self.dtype = pick_dtype(wanted, computing)
        self.cluster = RayCluster(config.cluster, place(config))
        self.trainer: Any = None
        self.closers: list[Callable[[], None]] = []

    def _own_device(self) -> torch.device:
        """Device of what this process computes itself: a torch trainer or a torch sampler."""
        local_trainer = self.trains and not self.fsdp
        if not self.on_gpus or not (local_trainer or not self.vllm):
            return torch.device("cpu")
        role = self.config.actor_train if local_trainer else self.config.actor_infer
        device = torch.device(pick_device("cuda").type, (role.device_mapping or [0])[0])
        torch.cuda.set_device(device)
        return device

    def close(self) -> None:
        for closer in reversed(self.closers):
            try:
                closer()
            except Exception:
                log.exception("something could not be closed")

    def build(self) -> BuiltCluster:
        for line in self.cluster.placement.lines():
            log.info("%s", line)
        self.closers.append(self.cluster.close)
        self.cluster.open()
        base = self._light_base()
        names = {self.name, *self.config.aliases}
        remote: VllmSampler | None = None
        if self.vllm:
            # vLLM measures free memory when it starts, so all of the trainer comes after it where they share GPUs.
            remote = VllmSampler(self.cluster, self._replica_settings(base), base)
            self.closers.append(remote.close)
            remote.open()
        shared = bool(self.trains and self.vllm and self.on_gpus and shared_devices(self.config))
        turns = self._turns(shared, remote)
        with turns.training():
            if (self.trains and not self.fsdp) or not self.vllm:
                base = self._whole_base()
            self.trainer = self._trainer(base, names)
        sampler = self._sampler(base, names, remote)
        exchange = ExchangeFolder(self.config.cluster.exchange_folder)
        engine = ClusterEngine(self.trainer, sampler, exchange, turns, self.close)
        return BuiltCluster(engine, self.device, self.dtype, self.threads, [base])

    def _turns(self, shared: bool, sampler: VllmSampler | None) -> Turns:
        def wake() -> None:
            assert sampler is not None
            # Memory that torch keeps for its next pass is memory that vLLM wants back now.
            try:
                self.trainer.release()
            except ActorLost as error:
                log.warning("the trainer was lost while it gave memory back: %s", error)
            sampler.wake()

        sleep: Callable[[], None] = sampler.sleep if sampler is not None else lambda: None
        return Turns(shared, sleep, wake, self.config.cluster.call_timeout_seconds)

    def _whole_base(self) -> BaseModel:
        limit = self.config.actor_train.model_args.max_lora_rank
        aliases = self.config.aliases
        dtype, length = self.dtype, self.config.sequence_length
        return load_base_model(self.folder, self.name, aliases, dtype, self.device, length, limit)

    def _light_base(self) -> BaseModel:
        """Facts of the base for a process that computes nothing with it."""
        architecture = read_architecture(self.folder)
        context = min(self.config.sequence_length, architecture.max_positions)
        cpu, limit = torch.device("cpu"), self.config.actor_train.model_args.max_lora_rank
        decoder = Decoder(architecture, cpu, context)
        aliases = tuple(self.config.aliases)
        return BaseModel(self.name, aliases, self.folder, architecture, {}, decoder, self.dtype, cpu, context, limit)

    def _trainer(self, base: BaseModel, names: set[str]) -> Any:
        if not self.trains:
            return None
        given = options(self.config.actor_train)
        checkpointing = self.config.actor_train.model_args.gradient_checkpointing
        tokens = given.get("max_tokens_per_batch", DEFAULT_PACK_TOKENS if self.on_gpus else 4096)
        if not self.fsdp:
            switch = given.get("activation_checkpointing", False) if checkpointing is None else checkpointing
            return LocalTrainer(TorchTrainer(dict.fromkeys(names, base), tokens, switch), self.cluster.own_address)
        settings = RankSettings(
            rank=0,
            ranks=len(self.cluster.placement.train),
            address="",
            folder=str(self.folder),
            name=self.name,
            context=self.config.sequence_length,
            max_lora_rank=self.config.actor_train.model_args.max_lora_rank,
            dtype=_torch_name(self.dtype),
            reduce_dtype=_torch_name(pick_dtype(given.get("reduce_dtype", "float32"), torch.device("cpu"))),
            device="cuda" if self.on_gpus else "cpu",
            fsdp_size=given.get("fsdp_size"),
            reshard_after_forward=given.get("reshard_after_forward", True),
            offload=given.get("offload_policy") == "cpu",
            checkpointing=given.get("activation_checkpointing", self.on_gpus)
            if checkpointing is None
            else checkpointing,
            max_tokens_per_batch=tokens,
            threads=None if self.on_gpus else 1,
            timeout_seconds=self.config.cluster.call_timeout_seconds,
        )
        trainer = FsdpTrainer(self.cluster, settings, names)
        self.closers.append(trainer.close)
        trainer.open()
        return trainer

    def _sampler(self, base: BaseModel, names: set[str], remote: VllmSampler | None) -> ClusterSampler:
        given = options(self.config.actor_infer)
        if remote is not None:
            return RemoteSampler(remote, names, self.trains, given.get("weight_transfer") == "broadcast")
        sampler = TorchSampler(
            dict.fromkeys(names, base),
            given.get("kv_cache_tokens", 65536),
            given.get("max_batch_size", 64),
            given.get("prefill_tokens_per_step", 1024),
        )
        local = LocalSampler(sampler, self.name)
        self.closers.append(local.close)
        return local

    def _replica_settings(self, base: BaseModel) -> ReplicaSettings:
        given = options(self.config.actor_infer)
        shared = self.trains and bool(shared_devices(self.config))
        engine = {key: value for key, value in given.items() if key not in _OWN_KEYS}
        wanted = given.get("dtype", self.config.actor_infer.model_args.dtype)
        engine |= {
            "dtype": _torch_name(self.dtype if wanted in (None, "auto") else pick_dtype(wanted, torch.device("cpu"))),
            "tensor_parallel_size": given.get("tensor_parallel_size", self.config.actor_infer.num_gpus_per_worker),
            "pipeline_parallel_size": given.get("pipeline_parallel_size", 1),
            "max_model_len": min(given.get("max_model_len", base.context), base.context),
            "enable_lora": True,
            "max_lora_rank": vllm_lora_rank(self.config.actor_train.model_args.max_lora_rank),
            "max_loras": given.get("max_loras", 4),
            "max_cpu_loras": given.get("max_cpu_loras", max(32, given.get("max_loras", 4))),
            "max_logprobs": given.get("max_logprobs", 20),
            "skip_tokenizer_init": not (self.folder / "tokenizer.json").is_file(),
            "worker_extension_cls": "tinker_backend.runtime.ray.vllm_worker.WeightReceiver",
            "enable_sleep_mode": given.get("enable_sleep_mode", self.on_gpus and shared),
        }
        if self.on_gpus:
            engine.setdefault("gpu_memory_utilization", DEFAULT_UTILIZATION)
        # One device needs no process of its own beside the engine's. Of more, each has one on this node: left to itself,
        # vLLM would ask Ray for them, as it runs in a placement group, whose one bundle it could not divide.
        engine["distributed_executor_backend"] = "uni" if self.config.actor_infer.num_gpus_per_worker == 1 else "mp"
        return ReplicaSettings(
            folder=str(self.folder),
            eos_token_ids=eos_of(self.folder, base.architecture.eos_token_ids),
            engine=engine,
            sleep_level=given.get("sleep_level", 1),
            cpu_cache_gigabytes=given.get("cpu_kv_cache_gigabytes", 1),
        )


def _torch_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
