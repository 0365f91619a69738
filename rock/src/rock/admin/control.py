"""The control plane's heart: records, lifecycle, and requests to sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from typing import Any

from rock.admin.encryption import encrypt
from rock.admin.envelope import BAD_REQUEST, INTERNAL_SERVER_ERROR, Failure
from rock.admin.lifecycle import DELETED, PENDING, RUNNING, STOPPED, WrongState, apply_event
from rock.admin.models import StartRequest
from rock.admin.placement import Demand, Placement
from rock.admin.store import Store
from rock.admin.workers import Ended, Worker, Workers
from rock.config import RockConfig, parse_size
from rock.errors import ConfigError
from rock.runtime.base import Phase, StartProgress

_LOG = logging.getLogger("rock.admin")
_TICK_SECONDS = 0.5
_FLUSH_SECONDS = 5.0
_LOST_AFTER_SECONDS = 15.0
_START_MARGIN_SECONDS = 15.0

Record = dict[str, Any]


class ControlPlane:
    """All sandboxes of one admin.

    Args:
        encryption_key: for client keys that are kept with a sandbox; None = such keys are not kept.
    """

    def __init__(
        self,
        config: RockConfig,
        store: Store,
        workers: Workers,
        placement: Placement,
        encryption_key: str | None = None,
    ) -> None:
        self.config, self.store, self.workers, self.placement = config, store, workers, placement
        self.encryption_key = encryption_key
        self.records: dict[str, Record] = {}
        self.commits: dict[str, dict[str, Any]] = {}
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._touched: set[str] = set()
        self._loops: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Rebuilds the state from the database and from what the workers say."""
        self.records = await asyncio.to_thread(self.store.load)
        held = [one for one in self.records.values() if one["state"] == RUNNING]
        if self.config.placement.type == "ray":
            for record in held:
                self.workers.adopt(record["worker_url"])
        await self.placement.open(one["sandbox_id"] for one in held)
        await self.reconcile()
        for record in list(self.records.values()):
            if record["state"] == PENDING:
                await self._event(record, "lost", "the admin was restarted during the start")
        self._loops = [asyncio.create_task(self._tick()), asyncio.create_task(self._reconcile_often())]

    async def close(self) -> None:
        for task in [*self._loops, *self._starts.values()]:
            task.cancel()
        await asyncio.gather(*self._loops, *self._starts.values(), return_exceptions=True)
        await self._flush()
        await self.placement.close()
        await self.workers.close()
        self.store.close()

    # -- start ----------------------------------------------------------------------------------------------------

    async def begin(self, request: StartRequest, headers: dict[str, str]) -> Record:
        """Checks a request, notes the sandbox as pending and starts it in the background."""
        sandbox_id = request.sandbox_id or uuid.uuid4().hex
        present = self.records.get(sandbox_id)
        if present is not None and present["state"] in (PENDING, RUNNING):
            raise Failure(f"sandbox_id {sandbox_id!r} is in use ({present['state']})", BAD_REQUEST, sandbox_id)
        limits = self.config.runtime
        try:
            memory = parse_size(request.memory, "memory")
            disk = parse_size(request.disk, "disk") if request.disk else None
        except ConfigError as error:
            raise Failure(str(error), BAD_REQUEST, sandbox_id) from error
        if memory > parse_size(limits.max_memory):
            raise Failure(f"memory {request.memory} is above the limit {limits.max_memory}", BAD_REQUEST, sandbox_id)
        cpus = request.limit_cpus or request.cpus
        if cpus > limits.max_cpus:
            raise Failure(f"cpus {cpus:g} is above the limit {limits.max_cpus:g}", BAD_REQUEST, sandbox_id)
        if request.num_gpus:
            raise Failure("num_gpus: this service has no GPUs for sandboxes", BAD_REQUEST, sandbox_id)
        if request.image_os != "linux":
            raise Failure(f"image_os {request.image_os!r}: only 'linux' can be started", BAD_REQUEST, sandbox_id)
        life = self.config.lifecycle
        timeout = request.startup_timeout or life.default_startup_timeout_seconds
        minutes = request.auto_clear_time_minutes
        auto_clear = request.auto_clear_seconds or (minutes * 60 if minutes else life.auto_clear_seconds)
        now = time.time()
        record: Record = {
            "sandbox_id": sandbox_id, "state": PENDING, "reason": "", "image": request.image, "create_time": now,
            "cpus": cpus, "memory": request.memory, "disk": request.disk, "resources": request.resources,
            "worker_url": "", "worker_instance": "", "host_name": "", "host_ip": "", "start_time": None, "stop_time": None, "delete_time": None,
            "auto_clear_seconds": auto_clear, "expire_at": now + auto_clear + timeout, "state_history": [],
            "phases": _phases(StartProgress()), **headers_to_metadata(headers, self.encryption_key),
            "request": {
                "sandbox_id": sandbox_id, "image": request.image, "memory_bytes": memory, "cpus": cpus,
                "pids": request.pids, "disk_bytes": disk, "network": request.network, "pull": request.pull,
                "env": request.env, "startup_timeout": min(timeout, life.max_startup_timeout_seconds),
            },
        }  # fmt: skip
        credentials = {"registry_username": request.registry_username, "registry_password": request.registry_password}
        self.records[sandbox_id] = record
        self._launch(record, credentials)
        return record

    def _launch(self, record: Record, credentials: dict[str, Any]) -> None:
        sandbox_id = record["sandbox_id"]
        task = asyncio.create_task(self._start(record, credentials))
        self._starts[sandbox_id] = task
        task.add_done_callback(lambda _: self._starts.pop(sandbox_id, None))

    async def _start(self, record: Record, credentials: dict[str, Any]) -> None:
        sandbox_id = record["sandbox_id"]
        try:
            worker = await self.placement.place(Demand.of(record), self._present())
        except Exception as error:  # Ray raises many kinds
            await self._no_start(record, "image_pull", str(error))
            return
        record["worker_url"] = worker.url
        timeout = record["request"]["startup_timeout"]
        record["phases"]["image_pull"] = {
            "status": "running",
            "message": "",
            "started_at": time.time(),
            "completed_at": None,
        }
        await self._save(record)
        try:
            body = {**record["request"], **credentials}
            answer = await self.workers.call(
                worker, "POST", "/sandboxes", sandbox_id, timeout + _START_MARGIN_SECONDS, json=body
            )
        except Exception as error:
            reason = str(error)
            _LOG.warning("sandbox %s did not start: %s", sandbox_id, reason)
            phase = "image_pull" if reason.startswith("image_pull:") else "docker_run"
            if phase == "docker_run":
                record["phases"]["image_pull"]["status"] = "success"
            await self._no_start(record, phase, reason)
            with contextlib.suppress(Failure):  # whatever came up after all goes away again
                await self.workers.call(worker, "DELETE", f"/sandboxes/{sandbox_id}", sandbox_id)
            return
        record["phases"] = answer["phases"]
        record["worker_instance"] = answer["instance"]
        record["host_ip"] = record["host_name"] = worker.url.split("//", 1)[-1].rsplit(":", 1)[0]
        record["expire_at"] = time.time() + record["auto_clear_seconds"]
        if record["state"] != PENDING:  # stopped meanwhile
            await self.workers.call(worker, "DELETE", f"/sandboxes/{sandbox_id}", sandbox_id)
            await self.placement.release(sandbox_id)
            return
        await self._event(record, "alive")
        _LOG.info("sandbox %s runs on %s", sandbox_id, worker.url)

    async def _no_start(self, record: Record, phase: str, reason: str) -> None:
        """Notes that a start failed, and gives back what was reserved."""
        failed = {"status": "failed", "message": reason, "completed_at": time.time()}
        record["phases"][phase] = {**record["phases"][phase], **failed}
        await self.placement.release(record["sandbox_id"])
        if record["state"] == PENDING:
            await self._event(record, "start_failed", reason)

    async def wait_started(self, record: Record) -> Record:
        """Waits for the start.

        Raises:
            Failure: it failed; with the reason.
        """
        task = self._starts.get(record["sandbox_id"])
        if task is not None:
            await asyncio.shield(task)
        if record["state"] != RUNNING:
            raise Failure(
                f"start failed: {record['reason']}", INTERNAL_SERVER_ERROR, record["sandbox_id"], kind="start"
            )
        return record

    async def wait_while_pending(self, record: Record, seconds: float) -> None:
        """Returns when the start is over, well or not, or after `seconds`."""
        task = self._starts.get(record["sandbox_id"])
        if task is not None and seconds > 0:
            await asyncio.wait({task}, timeout=seconds)

    def _present(self) -> list[Record]:
        return [record for record in self.records.values() if record["state"] in (PENDING, RUNNING)]

    # -- look-up and requests -------------------------------------------------------------------------------------

    def record(self, sandbox_id: str) -> Record:
        record = self.records.get(sandbox_id)
        if record is None:
            raise Failure(f"sandbox {sandbox_id!r} is not known here", BAD_REQUEST, sandbox_id, kind="not_found")
        return record

    def running(self, sandbox_id: str) -> tuple[Record, Worker]:
        """A running sandbox and its worker; counts as use, so its clock for auto-clear starts anew."""
        record = self.record(sandbox_id)
        if record["state"] != RUNNING:
            reason = f": {record['reason']}" if record["reason"] else ""
            raise Failure(f"sandbox {sandbox_id} is {record['state']}{reason}", BAD_REQUEST, sandbox_id, kind="gone")
        self.touch(record)
        return record, self.workers.of(record["worker_url"], sandbox_id)

    def touch(self, record: Record) -> None:
        record["expire_at"] = time.time() + record["auto_clear_seconds"]
        self._touched.add(record["sandbox_id"])

    async def call(
        self, sandbox_id: str, method: str, path: str, timeout: float = 60.0, **options: Any
    ) -> dict[str, Any]:
        """One request to the rocklet of a sandbox."""
        record, worker = self.running(sandbox_id)
        try:
            return await self.workers.call(
                worker, method, self.workers.rocklet_path(sandbox_id, path), sandbox_id, timeout, **options
            )
        except Ended as error:
            await self.ended(record, str(error))
            raise
        finally:
            self.touch(record)

    async def ended(self, record: Record, reason: str) -> None:
        """Notes that a sandbox ended without being asked to."""
        if record["state"] == RUNNING:
            await self._event(record, "ended", reason)

    # -- end ------------------------------------------------------------------------------------------------------

    async def stop(self, sandbox_id: str, event: str = "stop", reason: str = "stopped by request") -> Record:
        """Stops a sandbox; nothing happens to one that has stopped."""
        record = self.record(sandbox_id)
        if record["state"] in (STOPPED, DELETED):
            return record
        keep = self.config.lifecycle.keep_stopped and record["state"] == RUNNING
        await self._event(record, event, reason)
        if record["worker_url"]:
            worker = self.workers.of(record["worker_url"], sandbox_id)
            try:
                if keep:
                    tag = f"stopped/{sandbox_id}"
                    path = f"/sandboxes/{sandbox_id}/commit"
                    await self.workers.call(worker, "POST", path, sandbox_id, 600.0, json={"image_tag": tag})
                    record["kept_image"] = tag
                await self.workers.call(worker, "DELETE", f"/sandboxes/{sandbox_id}", sandbox_id)
            except Failure as failure:
                record["reason"] = f"{reason}; {failure}"
        await self.placement.release(sandbox_id)
        if not keep and record["state"] == STOPPED:
            await self._event(record, "delete", reason)
        else:
            await self._save(record)
        return record

    async def delete(self, sandbox_id: str) -> Record:
        """Stops and deletes a sandbox with all that was kept of it."""
        record = await self.stop(sandbox_id, reason="deleted by request")
        if record.get("kept_image"):
            worker = self.workers.of(record["worker_url"], sandbox_id)
            await self.workers.call(worker, "DELETE", f"/images/{record['kept_image']}", sandbox_id)
            record["kept_image"] = None
        if record["state"] == STOPPED:
            await self._event(record, "delete", "deleted by request")
        return record

    async def restart(self, sandbox_id: str) -> Record:
        """Starts a stopped sandbox again with the files that it had (needs lifecycle.keep_stopped)."""
        record = self.record(sandbox_id)
        if record["state"] == RUNNING:
            await self.stop(sandbox_id, reason="restarted by request")
        if not record.get("kept_image"):
            raise Failure(
                f"sandbox {sandbox_id} is {record['state']} and nothing of it was kept; set lifecycle.keep_stopped to "
                "restart stopped sandboxes",
                BAD_REQUEST,
                sandbox_id,
            )
        apply_event(record, "restart")
        record["request"]["image"] = record["kept_image"]
        record["expire_at"] = time.time() + record["auto_clear_seconds"] + record["request"]["startup_timeout"]
        self._launch(record, {})
        return record

    async def commit(self, sandbox_id: str, tag: str) -> dict[str, Any]:
        record, worker = self.running(sandbox_id)
        self.commits[sandbox_id] = {"phase": "RUNNING", "image": tag}
        try:
            path = f"/sandboxes/{sandbox_id}/commit"
            answer = await self.workers.call(worker, "POST", path, sandbox_id, 1800.0, json={"image_tag": tag})
        except Failure as failure:
            self.commits[sandbox_id] = {"phase": "FAILED", "image": tag, "message": str(failure)}
            raise
        self.commits[sandbox_id] = {"phase": "SUCCEEDED", **answer}
        return answer

    # -- watch ----------------------------------------------------------------------------------------------------

    async def _event(self, record: Record, event: str, reason: str = "") -> None:
        try:
            apply_event(record, event, reason)
        except WrongState as error:
            raise Failure(str(error), BAD_REQUEST, record["sandbox_id"]) from error
        await self._save(record)
        if event in ("ended", "lost"):
            await self.placement.release(record["sandbox_id"])

    async def _save(self, record: Record) -> None:
        self._touched.discard(record["sandbox_id"])
        await asyncio.to_thread(self.store.save, [dict(record)])

    async def _flush(self) -> None:
        touched, self._touched = self._touched, set()
        await asyncio.to_thread(self.store.save, [dict(self.records[one]) for one in touched if one in self.records])

    async def _tick(self) -> None:
        flushed = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.time()
            late = [one for one in self.records.values() if one["state"] == RUNNING and one["expire_at"] < now]
            for record in sorted(late, key=lambda one: one["expire_at"]):
                seconds = record["auto_clear_seconds"]
                _LOG.info("sandbox %s was not used for %g s: stopped", record["sandbox_id"], seconds)
                with contextlib.suppress(Failure):
                    await self.stop(record["sandbox_id"], "auto_clear", f"not used for {seconds:g} s (auto-clear)")
            if time.monotonic() - flushed > _FLUSH_SECONDS:
                flushed = time.monotonic()
                await self._flush()

    async def _reconcile_often(self) -> None:
        while True:
            await asyncio.sleep(self.config.lifecycle.reconcile_interval_seconds)
            try:
                await self.reconcile()
            except Exception:
                _LOG.exception("reconciling with the workers failed; next try follows")

    async def reconcile(self) -> None:
        """Compares records with what the workers run."""
        for url, reason in (await self.placement.lost()).items():
            for record in [one for one in self._present() if one["worker_url"] == url]:
                await self._event(record, "lost", reason)
        for worker in list(self.workers.all):
            asked_at = time.time()
            listing = await self.workers.listing(worker)
            ours = [one for one in self.records.values() if one["worker_url"] == worker.url]
            if listing is None:
                if time.monotonic() - worker.last_seen > _LOST_AFTER_SECONDS:
                    for record in ours:
                        if record["state"] == RUNNING:  # a start that is under way fails by itself
                            await self._event(record, "lost", worker.failure)
                continue
            for record in ours:
                await self._compare(record, listing, worker, asked_at)
        horizon = time.time() - self.config.lifecycle.forget_deleted_after_seconds
        for sandbox_id in await asyncio.to_thread(self.store.forget, DELETED, horizon):
            self.records.pop(sandbox_id, None)

    async def _compare(self, record: Record, listing: dict[str, Any], worker: Worker, asked_at: float) -> None:
        sandbox_id = record["sandbox_id"]
        there = listing["sandboxes"].get(sandbox_id, {}).get("state")
        if record["state"] == RUNNING and there != "running" and (record["start_time"] or 0) < asked_at:
            if record["worker_instance"] != listing["instance"]:
                reason = f"worker {worker.url} was restarted; its sandboxes ended with it"
            else:
                known = await self.workers.call(worker, "GET", f"/sandboxes/{sandbox_id}", sandbox_id)
                if known["state"] == "running":
                    return
                reason = known.get("reason") or "it ended"
            await self._event(record, "ended", reason)
        elif record["state"] == PENDING and there == "running" and sandbox_id not in self._starts:
            record["worker_instance"] = listing["instance"]
            await self._event(record, "alive")
        elif record["state"] in (STOPPED, DELETED) and there == "running":
            stopped = record["stop_time"] or 0
            if stopped < asked_at - 5:
                await self.workers.call(worker, "DELETE", f"/sandboxes/{sandbox_id}", sandbox_id)


def _phases(progress: StartProgress) -> dict[str, dict[str, Any]]:
    def as_dict(phase: Phase) -> dict[str, Any]:
        return dict(vars(phase))

    return {"image_pull": as_dict(progress.image_pull), "docker_run": as_dict(progress.docker_run)}


def headers_to_metadata(headers: dict[str, str], encryption_key: str | None) -> dict[str, Any]:
    """What the request's headers say about a sandbox; a client's key only encrypted."""
    key = headers.get("x-key")
    return {
        "user_id": headers.get("x-user-id", "default"),
        "experiment_id": headers.get("x-experiment-id", "default"),
        "namespace": headers.get("x-namespace", "default"),
        "cluster": headers.get("x-cluster", ""),
        "rock_authorization": encrypt(encryption_key, key) if key and encryption_key else None,
    }
