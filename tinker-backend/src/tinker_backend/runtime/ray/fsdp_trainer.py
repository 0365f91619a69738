"""The Trainer role over a group of FSDP2 ranks. The ranks share their fate: when one is lost, so is the group."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from typing import Any

import ray

from tinker_backend.runtime.ray.data_shares import merge
from tinker_backend.runtime.ray.ray_cluster import ActorLost, RayCluster, kill, raised_by, why_lost
from tinker_backend.runtime.ray.train_rank import RankSettings, TrainRank
from tinker_backend.runtime.ray.weight_broadcast import Channel
from tinker_backend.runtime.roles import (
    LossRequest,
    LossResult,
    OptimParams,
    RunSpec,
    RuntimeFault,
    SampleRequest,
    SampleResult,
    SavedWeights,
    SaveKind,
)

log = logging.getLogger(__name__)

_GRACE_SECONDS = 20.0
"""How long the other ranks get to fail as well, once one has; after it they are taken to wait in a collective."""


class FsdpTrainer:
    """Calls every rank with the same arguments and merges what they answer. One thread drives it."""

    def __init__(self, cluster: RayCluster, settings: RankSettings, names: set[str] | None = None) -> None:
        self.cluster, self.settings = cluster, settings
        self.names = names or {settings.name}
        """Names that clients may use for the base model."""
        self.runs: set[str] = set()
        self._full: set[str] = set()
        self.ranks: list[Any] = []

    def open(self) -> None:
        """Starts the ranks and loads the base. Raises ActorLost or what the ranks raised."""
        seats = self.cluster.placement.train
        address = f"tcp://{self.cluster.node_address(seats[0])}:{self.cluster.free_port(seats[0])}"
        started = time.monotonic()
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(self.settings.threads or 1))}
        if self.settings.device == "cuda":
            variables = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        self.ranks = [
            self.cluster.actor(
                TrainRank,
                seat,
                replace(self.settings, rank=seat.rank, ranks=len(seats), address=address),
                variables=variables,
            )
            for seat in seats
        ]
        self._gather([rank.ready.remote() for rank in self.ranks], self.cluster.config.start_timeout_seconds)
        log.info("%d ranks hold %s after %.1f s", len(seats), self.settings.name, time.monotonic() - started)

    def close(self) -> None:
        """Ends the ranks."""
        kill(self.ranks)
        self.ranks = []

    def pids(self) -> list[int]:
        """Process ids of the ranks."""
        return [int(pid) for pid in self._all("ready")]

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        shared = [ray.put(argument) for argument in arguments]
        references = [getattr(rank, method).remote(*shared) for rank in self.ranks]
        return self._gather(references, self.cluster.config.call_timeout_seconds)

    def _gather(self, references: list[Any], seconds: float) -> list[Any]:
        """All answers. Raises the ranks' exception when all failed, ActorLost when they are no longer in step."""
        deadline = time.monotonic() + seconds
        failures: list[BaseException] = []
        waiting = list(references)
        while waiting:
            left = deadline - time.monotonic()
            done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, left))
            if not done:
                if failures:
                    raise ActorLost(f"one rank failed ({failures[0]}), the others wait for it")
                raise ActorLost(f"the ranks gave no answer within {seconds:.0f} s")
            try:
                ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                failures.append(raised_by(error))
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
            except ray.exceptions.RayError as error:
                raise ActorLost(why_lost(error)) from error
        if failures and len(failures) < len(references):
            raise ActorLost(f"a rank failed alone: {failures[0]}")
        if failures:
            raise failures[0]
        return list(ray.get(references))

    # --- the role

    def create(self, run: RunSpec) -> None:
        """Adds a run. Raises RuntimeFault (user) for what is not possible."""
        self._check(run)
        if run.lora.rank and run.lora.seed is None:
            # All ranks must draw the same adapter.
            run = replace(run, lora=replace(run.lora, seed=int.from_bytes(os.urandom(7), "little")))
        self._all("create", run)
        self._note(run)

    def _check(self, run: RunSpec) -> None:
        lora, most = run.lora, self.settings.max_lora_rank
        if run.base_model not in self.names:
            served = ", ".join(sorted(self.names))
            raise RuntimeFault(f"base_model {run.base_model!r} is not served; served: {served}", "user")
        if not 0 <= lora.rank <= most:
            raise RuntimeFault(f"rank {lora.rank} is not possible; 1 to {most}, or 0 to train all weights", "user")
        if lora.rank and not (lora.train_attn or lora.train_mlp or lora.train_unembed):
            raise RuntimeFault("at least one of train_attn, train_mlp and train_unembed must be true", "user")
        if run.optimizer != "adamw":
            raise RuntimeFault(f"optimizer {run.optimizer!r} is not supported; use adamw", "user")

    def forward_backward(self, batch: list[LossRequest]) -> list[LossResult | RuntimeFault]:
        """Many runs in one pass over all ranks; a request that fails yields a RuntimeFault in its place."""
        answers = self._all("forward_backward", batch)
        return [merge([answer[index] for answer in answers]) for index in range(len(batch))]

    def optim_step(self, run_id: str, params: OptimParams) -> dict[str, float]:
        """One AdamW step of a run."""
        metrics: dict[str, float] = self._all("optim_step", run_id, params)[0]
        return metrics

    def save(self, run_id: str, path: str, kind: SaveKind) -> SavedWeights:
        """Writes the folder ``path`` atomically; all nodes must see it when all weights are trained."""
        saved: SavedWeights = self._all("save", run_id, path, kind)[0]
        return saved

    def load(self, run: RunSpec, path: str, optimizer: bool) -> None:
        """Creates or overwrites a run from a saved folder."""
        self._check(run)
        self._all("load", run, path, optimizer)
        self._note(run)

    def drop(self, run_id: str) -> None:
        """Forgets a run."""
        self._all("drop", run_id)
        self.runs.discard(run_id)
        self._full.discard(run_id)

    def _note(self, run: RunSpec) -> None:
        self.runs.add(run.run_id)
        (self._full.discard if run.lora.rank else self._full.add)(run.run_id)

    @property
    def device(self) -> str:
        """``cuda`` or ``cpu``."""
        return self.settings.device

    def is_full(self, run_id: str) -> bool:
        """Whether a run trains all weights."""
        return run_id in self._full

    def channel_host(self) -> tuple[str, int]:
        """Where the first rank can listen for samplers."""
        seat = replace(self.cluster.placement.train[0], port=None)
        return self.cluster.node_address(seat), self.cluster.free_port(seat)

    def send_weights(self, run_id: str, channel: Channel) -> None:
        """Broadcasts all weights of a run."""
        self._all("send_weights", run_id, channel)

    def release(self) -> None:
        """Gives the GPU memory that nothing uses to other processes."""
        self._all("release")

    def score(self, request: SampleRequest, path: str | None) -> SampleResult:
        """What the request asks about its prompt, under the weights of a sampler folder or of the base."""
        result: SampleResult = self._all("score", request, path)[0]
        return result
