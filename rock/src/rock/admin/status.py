"""A sandbox's record as clients see it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rock import __version__

Record = dict[str, Any]


def _iso(moment: float | None) -> str | None:
    """UNIX time as ISO 8601 in UTC."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def start_response(record: Record) -> dict[str, Any]:
    return {
        "sandbox_id": record["sandbox_id"],
        "host_name": record["host_name"],
        "host_ip": record["host_ip"],
        "cpus": record["cpus"],
        "memory": record["memory"],
        "disk": record["disk"],
        "disk_limit_rootfs": record["disk"],
    }


def status_response(record: Record, reachable: str = "") -> dict[str, Any]:
    """Fields of get_status.

    Args:
        reachable: why the worker does not answer at the moment; "" = it does.
    """
    alive = record["state"] == "running" and not reachable
    stop_at = record["expire_at"] if record["state"] == "running" else None
    return {
        **start_response(record),
        "status": record["phases"],
        "state": record["state"],
        "port_mapping": {},
        "is_alive": alive,
        "message": reachable or record["reason"],
        "failure_reason": record["reason"] if record["state"] in ("stopped", "deleted") else "",
        "image": record["image"],
        "metadata": {},
        "gateway_version": __version__,
        "swe_rex_version": "",
        "user_id": record["user_id"],
        "experiment_id": record["experiment_id"],
        "namespace": record["namespace"],
        "num_gpus": None,
        "accelerator_type": None,
        "start_time": _iso(record["start_time"]),
        "stop_time": _iso(record["stop_time"]),
        "create_time": _iso(record["create_time"]),
        "archive_time": None,
        "delete_time": _iso(record["delete_time"]),
        "auto_stop_time": _iso(stop_at),
        "auto_archive_time": None,
        "auto_delete_time": None,
        "state_history": [{**one, "timestamp": _iso(one["timestamp"])} for one in record["state_history"]],
    }
