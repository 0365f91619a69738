"""Which process runs on which devices of which node. Computed from ``engine.yaml`` alone, without Ray and without a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_backend.config import EngineConfig
from tinker_backend.engine_rules import has_trainer, shared_devices, strategy

_SAMPLER_PORTS = 100
_PORTS_PER_REPLICA = 50
_PORTS = 65536


@dataclass(frozen=True)
class Seat:
    """One process: its role, its number in the role, its node, and the devices of that node that it uses."""

    role: str
    rank: int
    node: int
    devices: tuple[int, ...]
    """Global numbers, as in device_mapping."""
    local_devices: tuple[int, ...]
    """Numbers on the node, as CUDA_VISIBLE_DEVICES takes them."""
    port: int | None
    """First port that the process binds; None: a free one, chosen at its start. Of the ranks, the first alone binds one."""


@dataclass(frozen=True)
class Placement:
    """All seats, and the devices that trainer and sampler share."""

    on_gpus: bool
    nodes: int
    devices_per_node: int
    train: tuple[Seat, ...]
    infer: tuple[Seat, ...]
    shared: tuple[int, ...]

    def bundles(self) -> list[dict[str, float]]:
        """Resources of Ray's placement group, one bundle a node: a CPU for each process, and every GPU in use there."""
        wanted: list[dict[str, float]] = []
        for node in range(self.nodes):
            seats = [seat for seat in (*self.train, *self.infer) if seat.node == node]
            bundle = {"CPU": float(max(1, len(seats)))}
            if self.on_gpus and seats:
                bundle["GPU"] = float(len({device for seat in seats for device in seat.local_devices}))
            wanted.append(bundle)
        return wanted

    def lines(self) -> list[str]:
        """The placement for a person."""
        kind = "GPU" if self.on_gpus else "CPU slot"
        text = [f"{self.nodes} node(s), {self.devices_per_node} {kind}(s) each"]
        for seat in (*self.train, *self.infer):
            number = ",".join(map(str, seat.local_devices))
            mapped = ",".join(map(str, seat.devices))
            port = "a free port" if seat.port is None else f"port {seat.port}"
            if seat.role == "actor_train" and seat.rank:
                port = "joins actor_train 0"
            text.append(f"{seat.role} {seat.rank}: node {seat.node}, {kind} {number} (device {mapped}), {port}")
        if self.shared:
            text.append(
                f"devices {', '.join(map(str, self.shared))} are shared: the sampler sleeps while the trainer computes"
            )
        elif self.train and self.infer:
            text.append("trainer and sampler share no device: they compute at the same time")
        return text


def place(config: EngineConfig) -> Placement:
    """Seats of a checked configuration. The embedded strategies run in the runtime process and have no seat."""
    on_gpus = config.device != "cpu"
    fsdp = has_trainer(config) and strategy(config.actor_train) == "fsdp2_train"
    vllm = strategy(config.actor_infer) == "vllm"
    train = list(config.actor_train.device_mapping or []) if fsdp else []
    infer = list(config.actor_infer.device_mapping or []) if vllm else []
    per_node = config.num_gpus_per_node or 1 + max([*train, *infer], default=0)
    width, base = config.actor_infer.num_gpus_per_worker, config.cluster.base_port
    groups = [infer[first : first + width] for first in range(0, len(infer), width)]
    used = [device // per_node for device in (*train, *infer)]
    return Placement(
        on_gpus=on_gpus,
        nodes=max([config.num_nodes, *(node + 1 for node in used)]),
        devices_per_node=per_node,
        train=tuple(
            _seat("actor_train", rank, [device], per_node, None if rank else base) for rank, device in enumerate(train)
        ),
        infer=tuple(
            _seat("actor_infer", rank, group, per_node, base and base + _SAMPLER_PORTS + _PORTS_PER_REPLICA * rank)
            for rank, group in enumerate(groups)
        ),
        shared=tuple(shared_devices(config)) if has_trainer(config) else (),
    )


def placement_problems(config: EngineConfig) -> list[str]:
    """One sentence for each key that keeps a placement from being reached."""
    placement, cluster, text = place(config), config.cluster, []
    if placement.nodes > 1 and cluster.address is None:
        text.append(
            f"cluster.address: missing; the placement has {placement.nodes} nodes and a Ray of this process has one: start "
            "Ray on every node and set it to auto, or to host:port of the head"
        )
    if placement.nodes > 1 and cluster.exchange_folder is None:
        text.append(
            f"cluster.exchange_folder: missing; {placement.nodes} nodes share no memory: name a folder on a file system "
            "that all of them see"
        )
    last = max((seat.port or 0 for seat in placement.infer), default=0)
    if last + _PORTS_PER_REPLICA > _PORTS:
        text.append(
            f"cluster.base_port: {cluster.base_port} leaves no ports for {len(placement.infer)} replicas; lower it by "
            f"{last + _PORTS_PER_REPLICA - _PORTS}, or leave it out"
        )
    return text


def port_problems(config: EngineConfig, backend_port: int) -> list[str]:
    """A sentence where the server's own port is one of those that the engine will bind."""
    placement = place(config)
    taken = [range(seat.port, seat.port + 1) for seat in placement.train if seat.port is not None]
    taken += [range(seat.port, seat.port + _PORTS_PER_REPLICA) for seat in placement.infer if seat.port is not None]
    return [
        f"cluster.base_port: {config.cluster.base_port} gives ports {ports.start}-{ports.stop - 1} to a process of the engine, and "
        f"backend.port {backend_port} is one of them; change either"
        for ports in taken
        if backend_port in ports
    ]


def _seat(role: str, rank: int, devices: list[int], per_node: int, port: int | None) -> Seat:
    local = tuple(device % per_node for device in devices)
    return Seat(role, rank, devices[0] // per_node, tuple(devices), local, port)
