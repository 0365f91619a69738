"""Which worker a new sandbox goes to, and what is left of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from rock.admin.envelope import BAD_REQUEST, INTERNAL_SERVER_ERROR, Failure
from rock.admin.workers import Worker, Workers

Record = dict[str, Any]


@dataclass(frozen=True)
class Demand:
    """What one sandbox needs. `resources`: amounts of resources that a cluster's nodes define themselves."""

    sandbox_id: str
    cpus: float
    memory_bytes: int
    resources: dict[str, float]

    @classmethod
    def of(cls, record: Record) -> Demand:
        request = record["request"]
        memory = int(request["memory_bytes"] or 0)
        return cls(record["sandbox_id"], float(record["cpus"]), memory, dict(record.get("resources") or {}))

    def __str__(self) -> str:
        own = "".join(f", {name} {amount:g}" for name, amount in self.resources.items())
        return f"{self.cpus:g} cpus, {self.memory_bytes / (1 << 30):.2g}g memory{own}"


class Placement(Protocol):
    """Chooses workers and accounts for what their sandboxes hold."""

    async def open(self, held: Iterable[str]) -> None:
        """Prepares for work. `held`: sandboxes that run; what all others held is given back."""
        ...

    async def place(self, demand: Demand, others: Iterable[Record]) -> Worker:
        """A worker with room; the room is the sandbox's until `release`.

        Args:
            others: records of the sandboxes that are starting or running.

        Raises:
            Failure: there is no room; with what is asked for and what there is.
        """
        ...

    async def release(self, sandbox_id: str) -> None:
        """Gives back what a sandbox held; nothing happens if it held nothing."""
        ...

    async def lost(self) -> dict[str, str]:
        """Workers whose machine is known to be gone: reason by URL."""
        ...

    async def close(self) -> None: ...


class ListedWorkers:
    """Placement over the workers that admin.yaml lists: the one with the fewest sandboxes among those with room."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    async def open(self, held: Iterable[str]) -> None:
        pass

    async def place(self, demand: Demand, others: Iterable[Record]) -> Worker:
        if demand.resources:
            names = ", ".join(demand.resources)
            raise Failure(
                f"resources {names}: listed workers have cpus and memory only; set placement.type ray", BAD_REQUEST
            )
        usage: dict[str, dict[str, float]] = {}
        for record in others:
            if record["sandbox_id"] == demand.sandbox_id or not record["worker_url"]:
                continue
            used = usage.setdefault(record["worker_url"], {"sandboxes": 0, "cpus": 0, "memory": 0})
            used["sandboxes"] += 1
            used["cpus"] += record["cpus"]
            used["memory"] += record["request"]["memory_bytes"] or 0
        reachable = [worker for worker in self.workers.all if not worker.failure] or self.workers.all
        none = {"sandboxes": 0.0, "cpus": 0.0, "memory": 0.0}
        fitting = [one for one in reachable if _fits(demand, usage.get(one.url, none), one.capacity)]
        if not fitting:
            full = "; ".join(
                f"{one.url} has given {_said(usage.get(one.url, none))}, of {_said(one.capacity)} at most"
                for one in reachable
            )
            raise Failure(
                f"no worker has room for {demand}: {full} (worker.max_sandboxes, total_cpus, total_memory)",
                INTERNAL_SERVER_ERROR,
                demand.sandbox_id,
            )
        return min(fitting, key=lambda one: usage.get(one.url, none)["sandboxes"])

    async def release(self, sandbox_id: str) -> None:
        pass

    async def lost(self) -> dict[str, str]:
        return {}

    async def close(self) -> None:
        pass


def _fits(demand: Demand, used: dict[str, float], capacity: dict[str, float]) -> bool:
    wanted = {"sandboxes": 1, "cpus": demand.cpus, "memory": demand.memory_bytes}
    return all(used[name] + wanted[name] <= limit + 1e-9 for name, limit in capacity.items() if name in wanted)


def _said(amounts: dict[str, float]) -> str:
    parts = {"sandboxes": "{:g} sandboxes", "cpus": "{:g} cpus", "memory": "{:.2g}g memory"}
    scale = {"memory": 1 << 30}
    return " and ".join(parts[name].format(amounts[name] / scale.get(name, 1)) for name in parts if name in amounts)
