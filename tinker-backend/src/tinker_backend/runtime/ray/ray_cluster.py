"""Ray: start or join it, reserve the devices of a placement, start actors in their seats, and wait for them with deadlines."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tinker_backend.config import ClusterSection
from tinker_backend.runtime.ray.engine_folder import remove_folders_of_dead_engines
from tinker_backend.runtime.ray.own_folder import OwnFolder
from tinker_backend.runtime.ray.placement import Placement, Seat
from tinker_backend.runtime.roles import RuntimeFault

log = logging.getLogger(__name__)

_SMALL_STORE = 256 * 1024 * 1024
_STARTS = 3


class ActorLost(Exception):
    """An actor died, does not answer in time, or cannot be reached; what it held is gone."""


class RayCluster:
    """The devices of one engine. Actors live no longer than this process."""

    def __init__(self, config: ClusterSection, placement: Placement) -> None:
        self.config, self.placement = config, placement
        self._own_folder: OwnFolder | None = None
        self._group: PlacementGroup | None = None

    def open(self) -> None:
        """Joins Ray, or starts one, and reserves the devices. Raises RuntimeFault (user) when they are not there."""
        # Logs of workers stay in Ray's session folder; the usage report would leave this machine.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        remove_folders_of_dead_engines()
        common: dict[str, Any] = {"namespace": self.config.namespace, "log_to_driver": True, "configure_logging": False}
        if self.config.address is not None:
            ray.init(address=self.config.address, **common)
        else:
            self._start_ray(common)
        bundles = self.placement.bundles()
        if self.config.address is None:
            self._check_room(bundles)
        strategy = "STRICT_SPREAD" if len(bundles) > 1 else "PACK"
        self._group = placement_group(bundles, strategy=strategy)
        if not self._group.wait(self.config.start_timeout_seconds):
            raise RuntimeFault(
                f"Ray has no room for {bundles} within {self.config.start_timeout_seconds:.0f} s; it offers "
                f"{ray.cluster_resources()}: correct device_mapping or start more Ray nodes",
                "user",
            )

    def _start_ray(self, common: dict[str, Any]) -> None:
        _choose_token()
        # An actor that is killed must not leave vLLM's processes behind, which would keep their GPU memory.
        os.environ.setdefault("RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper", "true")
        # Ray's processes, and with them this one, end so many seconds after its head; only then can all start anew.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "20")
        # Every actor here has environment variables of its own, so workers that wait for anybody wait in vain.
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        folder = self.config.temporary_folder
        if folder is None:
            self._own_folder = OwnFolder(Path("/tmp"), "tinker-ray")
        wanted = sum(bundle["CPU"] for bundle in self.placement.bundles())
        for left in reversed(range(_STARTS)):
            try:
                ray.init(
                    # Not the Ray that RAY_ADDRESS names, nor one that somebody else started here.
                    address="local",
                    num_cpus=self.config.cpus or int(wanted),
                    include_dashboard=False,
                    object_store_memory=self.config.object_store_bytes
                    or (None if self.placement.on_gpus else _SMALL_STORE),
                    _temp_dir=str(folder or self._own_folder.path),  # type: ignore[union-attr]
                    _node_ip_address="127.0.0.1" if self.placement.nodes == 1 else None,
                    **common,
                )
                return
            except Exception as error:
                # Ray gives its processes 30 s to come up, which are not enough on a busy machine.
                if not left or "timed out during startup" not in str(error):
                    raise
                log.warning("Ray did not start in its time; once more")
                ray.shutdown()

    def _check_room(self, bundles: list[dict[str, float]]) -> None:
        """A Ray of this process never grows, so what is missing now is missing for good."""
        offered = ray.cluster_resources()
        for kind in ("CPU", "GPU"):
            wanted = sum(bundle.get(kind, 0.0) for bundle in bundles)
            if wanted > offered.get(kind, 0.0):
                fix = (
                    "raise cluster.cpus"
                    if kind == "CPU"
                    else "correct device_mapping, or set `device: cpu`, or cluster.address to a Ray with more nodes"
                )
                raise RuntimeFault(
                    f"the configuration needs {wanted:.0f} {kind}s and this machine's Ray offers "
                    f"{offered.get(kind, 0.0):.0f}: {fix}",
                    "user",
                )

    def close(self) -> None:
        """Ends all actors, and Ray where this process started it."""
        # A second time, the group would be looked for in a Ray that was started for nothing but that.
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            with contextlib.suppress(Exception):
                remove_placement_group(group)
        with contextlib.suppress(Exception):
            ray.shutdown()
        if self._own_folder is not None:
            self._own_folder.remove()
        remove_folders_of_dead_engines()

    def actor(
        self, cls: type[Any], seat: Seat, *arguments: Any, variables: dict[str, str] | None = None, concurrency: int = 1
    ) -> Any:
        """Starts an actor in its seat, with the seat's GPUs visible and no others."""
        environment = dict(variables or {})
        if self.placement.on_gpus:
            environment |= {
                "CUDA_VISIBLE_DEVICES": self._cuda_names(seat),
                "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
            }
        remote = ray.remote(cls).options(
            # The bundle owns the node's GPUs; the seat says which of them, so that roles may share one.
            num_cpus=1,
            num_gpus=0,
            max_restarts=0,
            max_concurrency=concurrency,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=seat.node
            ),
            runtime_env={"env_vars": environment},
        )
        return remote.remote(*arguments)

    def _cuda_names(self, seat: Seat) -> str:
        """The seat's GPUs as CUDA takes them. Where only some of this machine's are visible, the numbers count those."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") if self.config.address is None else None
        names = [name.strip() for name in visible.split(",")] if visible else None
        return ",".join(str(number) if names is None else names[number] for number in seat.local_devices)

    def own_address(self) -> str:
        """Address of this process's node."""
        return "127.0.0.1" if self._alone else str(ray.util.get_node_ip_address())

    @property
    def _alone(self) -> bool:
        """Everything is on this machine, in a Ray of this process."""
        return self.placement.nodes == 1 and self.config.address is None

    def node_address(self, seat: Seat) -> str:
        """Address of the node of a seat."""
        if self._alone:
            return "127.0.0.1"
        probe = self.actor(NodeProbe, seat)
        (address,) = wait_for([probe.address.remote()], self.config.start_timeout_seconds)
        ray.kill(probe)
        return str(address)

    def free_port(self, seat: Seat) -> int:
        """A port that is free on the node of a seat, or the one that the configuration fixes."""
        if seat.port is not None:
            return seat.port
        if self._alone:
            return NodeProbe().free_port()
        probe = self.actor(NodeProbe, seat)
        (port,) = wait_for([probe.free_port.remote()], self.config.start_timeout_seconds)
        ray.kill(probe)
        return int(port)


def _choose_token() -> None:
    """A token of this process's own, where the environment says nothing of tokens; Ray asks for one by default.

    Otherwise Ray keeps one for all of a user's processes in a file: two that start at once would overwrite each other's.
    """
    if not any(os.environ.get(f"RAY_AUTH_{name}") for name in ("MODE", "TOKEN", "TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


class NodeProbe:
    """Answers questions about the node it is on."""

    def address(self) -> str:
        """Address that other nodes reach it under."""
        return str(ray.util.get_node_ip_address())

    def free_port(self) -> int:
        """A port that nobody listens on now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])


def kill(actors: Sequence[Any]) -> None:
    """Ends actors at once."""
    for actor in actors:
        with contextlib.suppress(Exception):
            ray.kill(actor)


def wait_for(references: Sequence[Any], seconds: float) -> list[Any]:
    """Results of remote calls.

    Raises what the calls raised, ActorLost when an actor died or the deadline passed.
    """
    try:
        return list(ray.get(list(references), timeout=seconds))
    except GetTimeoutError as error:
        raise ActorLost(f"no answer within {seconds:.0f} s") from error
    except RayActorError as error:
        raise ActorLost(why_lost(error)) from error
    except RayTaskError as error:
        raise raised_by(error) from error
    except RayError as error:
        raise ActorLost(f"{type(error).__name__}: {error}") from error


def why_lost(error: RayError) -> str:
    """One line: what happened, and Ray's cause where it names one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = [line for line in lines[1:] if line.startswith("The actor is dead because")]
    text = " ".join([lines[0], *causes[:1]])
    if "all references to the actor were removed" in text:
        # A head that cannot talk to the process that started an actor takes it for gone.
        text += " Give this process the RAY_AUTH_MODE that the nodes of Ray were started with."
    return text


def raised_by(error: RayTaskError) -> BaseException:
    """The exception of the remote method itself."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, RuntimeFault):
        return RuntimeFault(str(cause), cause.category)
    if cause is not None:
        return RuntimeFault(f"{type(cause).__name__}: {cause}", "server")
    return RuntimeFault(str(error).strip().splitlines()[-1], "server")
