"""Placement over the nodes of a Ray cluster.

Ray does the accounting: every sandbox holds a placement group of one bundle (CPU, memory, and the cluster's own resources),
and Ray says on which node it lies. The sandbox is made by the host rocklet of that node. The groups have names and outlive
the admin, so a restarted admin goes on with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterable
from typing import Any

from rock.admin.envelope import BAD_REQUEST, INTERNAL_SERVER_ERROR, Failure
from rock.admin.placement import Demand, Record
from rock.admin.workers import Worker, Workers
from rock.config import PlacementConfig
from rock.errors import ConfigError

_PREFIX = "rock-sandbox-"
# A node whose worker does not listen at worker.port says so with this resource; its amount is the port.
PORT_RESOURCE = "rock_worker_port"


class RayPlacement:
    """See Placement.

    Args:
        worker_port: where host rocklets listen, unless a node says otherwise.
    """

    def __init__(self, config: PlacementConfig, workers: Workers, worker_port: int) -> None:
        try:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            import ray
            import ray.exceptions
            import ray.util
        except ImportError as error:
            raise ConfigError("placement.type ray needs the package ray: pip install 'rl-rock[ray]'") from error
        self.ray, self.config, self.workers, self.worker_port = ray, config, workers, worker_port
        self._groups: dict[str, Any] = {}
        self._urls: dict[str, str] = {}  # of nodes, by id, also of those that are gone
        self._lock = threading.Lock()  # Ray's client state belongs to one thread at a time

    async def open(self, held: Iterable[str]) -> None:
        await asyncio.to_thread(self._open, set(held))

    def _open(self, held: set[str]) -> None:
        with self._lock:
            try:
                self.ray.init(
                    address=self.config.address,
                    namespace=self.config.namespace,
                    log_to_driver=False,
                    logging_level="warning",
                )
            except (ConnectionError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
                raise ConfigError(
                    f"no Ray cluster answers at placement.address {self.config.address!r}: start one with ray start, or use "
                    f"placement.type workers ({error})"
                ) from error
            for entry in self.ray.util.placement_group_table().values():
                name, sandbox_id = entry["name"], entry["name"].removeprefix(_PREFIX)
                if entry["state"] == "REMOVED" or not name.startswith(_PREFIX):
                    continue
                with contextlib.suppress(ValueError):  # of another namespace
                    group = self.ray.util.get_placement_group(name)
                    if sandbox_id in held:
                        self._groups[sandbox_id] = group
                    else:
                        self.ray.util.remove_placement_group(group)
            self._nodes()

    async def place(self, demand: Demand, others: Iterable[Record]) -> Worker:
        return await asyncio.to_thread(self._place, demand)

    def _place(self, demand: Demand) -> Worker:
        bundle = {"CPU": demand.cpus, "memory": float(demand.memory_bytes), **demand.resources}
        bundle = {name: amount for name, amount in bundle.items() if amount > 0}
        with self._lock:
            nodes = [node for node in self.ray.nodes() if node["Alive"]]
            if not any(
                all(node["Resources"].get(name, 0) >= amount for name, amount in bundle.items()) for node in nodes
            ):
                raise Failure(
                    f"no node of the Ray cluster is large enough for {demand}: {self._said(nodes)}",
                    BAD_REQUEST,
                    demand.sandbox_id,
                )
            group = self.ray.util.placement_group(
                [bundle], strategy="PACK", name=f"{_PREFIX}{demand.sandbox_id}", lifetime="detached"
            )
        if not group.wait(self.config.wait_seconds):
            with self._lock:
                self.ray.util.remove_placement_group(group)
                free = self.ray.available_resources()
            raise Failure(
                f"the Ray cluster had no room for {demand} within {self.config.wait_seconds:g} s; free are "
                f"{free.get('CPU', 0):g} cpus, {free.get('memory', 0) / (1 << 30):.2g}g memory",
                INTERNAL_SERVER_ERROR,
                demand.sandbox_id,
            )
        with self._lock:
            self._groups[demand.sandbox_id] = group
            node_id = next(iter(self.ray.util.placement_group_table(group)["bundles_to_node_id"].values()))
            self._nodes()
            return self.workers.adopt(self._urls[node_id])

    async def release(self, sandbox_id: str) -> None:
        await asyncio.to_thread(self._release, sandbox_id)

    def _release(self, sandbox_id: str) -> None:
        with self._lock:
            group = self._groups.pop(sandbox_id, None)
            if group is not None:
                self.ray.util.remove_placement_group(group)

    async def lost(self) -> dict[str, str]:
        return await asyncio.to_thread(self._lost)

    def _lost(self) -> dict[str, str]:
        with self._lock:
            alive = self._nodes()
        present = {self._urls[node] for node in alive}
        gone = {url: node for node, url in self._urls.items() if node not in alive and url not in present}
        return {url: f"node {node[:12]} of worker {url} left the Ray cluster" for url, node in gone.items()}

    def _nodes(self) -> set[str]:
        """Notes where the workers of the nodes are. Returns the ids of nodes that are alive."""
        alive: set[str] = set()
        for node in self.ray.nodes():
            port = int(node["Resources"].get(PORT_RESOURCE, 0)) or self.worker_port
            if node["Alive"]:
                alive.add(node["NodeID"])
                self._urls[node["NodeID"]] = f"http://{node['NodeManagerAddress']}:{port}"
        return alive

    def _said(self, nodes: list[dict[str, Any]]) -> str:
        def one(resources: dict[str, float]) -> str:
            hidden = (PORT_RESOURCE, "CPU", "memory", "object_store_memory")
            own = [
                f", {name} {amount:g}" for name, amount in resources.items() if name not in hidden and ":" not in name
            ]
            return (
                f"{resources.get('CPU', 0):g} cpus, {resources.get('memory', 0) / (1 << 30):.2g}g memory{''.join(own)}"
            )

        return "; ".join(one(node["Resources"]) for node in nodes) or "it has no node"

    async def close(self) -> None:
        await asyncio.to_thread(self.ray.shutdown)
