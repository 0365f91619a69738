"""Start, look at, stop."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from rock.admin.control import ControlPlane, Record
from rock.admin.envelope import BAD_REQUEST, INTERNAL_SERVER_ERROR, Failure, success
from rock.admin.models import BatchRequest, CommitBody, SandboxRef, StartRequest
from rock.admin.status import start_response, status_response

MAX_BATCH = 2000


def sandbox_routes(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    def status(record: Record) -> dict[str, Any]:
        worker = next((one for one in control.workers.all if one.url == record["worker_url"]), None)
        return status_response(record, worker.failure if worker is not None else "")

    @router.post("/start_async")
    async def start_async(body: StartRequest, request: Request) -> JSONResponse:
        return success(start_response(await control.begin(body, dict(request.headers))))

    @router.post("/start")
    async def start(body: StartRequest, request: Request) -> JSONResponse:
        record = await control.begin(body, dict(request.headers))
        return success(start_response(await control.wait_started(record)))

    @router.get("/is_alive")
    async def is_alive(sandbox_id: str) -> JSONResponse:
        record = control.record(sandbox_id)
        seen = status(record)
        if not seen["is_alive"]:
            return success({"is_alive": False, "message": seen["message"] or f"sandbox is {record['state']}"})
        answer = await control.call(sandbox_id, "GET", "is_alive", timeout=15)
        return success({"is_alive": bool(answer.get("is_alive")), "message": ""})

    @router.get("/get_status")
    async def get_status(
        sandbox_id: str, include_all_states: bool = False, wait: float = Query(0, ge=0, le=30)
    ) -> JSONResponse:
        record = control.record(sandbox_id)
        await control.wait_while_pending(record, wait)
        if record["state"] == "running":
            control.touch(record)
        return success(status(record))

    @router.get("/get_sandbox_statistics")
    async def get_statistics(sandbox_id: str) -> JSONResponse:
        return success(await control.call(sandbox_id, "GET", "get_statistics"))

    @router.post("/stop")
    async def stop(body: SandboxRef) -> JSONResponse:
        record = await control.stop(body.sandbox_id)
        return success(f"sandbox {body.sandbox_id} is {record['state']}")

    @router.post("/delete")
    async def delete(body: SandboxRef) -> JSONResponse:
        record = await control.delete(body.sandbox_id)
        return success(f"sandbox {body.sandbox_id} is {record['state']}")

    @router.post("/restart")
    async def restart(body: SandboxRef) -> JSONResponse:
        record = await control.wait_started(await control.restart(body.sandbox_id))
        return success(start_response(record))

    @router.post("/sandboxes/{sandbox_id}/restart")
    async def restart_by_path(sandbox_id: str) -> JSONResponse:
        return success(start_response(await control.wait_started(await control.restart(sandbox_id))))

    @router.post("/sandboxes/{sandbox_id}/archive")
    async def archive(sandbox_id: str) -> JSONResponse:
        control.record(sandbox_id)
        raise Failure(
            "archiving needs an object store, which this service has not; use commit", BAD_REQUEST, sandbox_id
        )

    @router.get("/sandboxes")
    async def listing(
        page: int = Query(1, ge=1),
        page_size: int = Query(20, ge=1, le=1000),
        user_id: str | None = None,
        experiment_id: str | None = None,
        namespace: str | None = None,
        image: str | None = None,
        state: str | None = None,
    ) -> JSONResponse:
        wanted = {
            "user_id": user_id, "experiment_id": experiment_id, "namespace": namespace, "image": image, "state": state
        }  # fmt: skip
        found = [
            record
            for record in control.records.values()
            if all(value is None or record[name] == value for name, value in wanted.items())
        ]
        found.sort(key=lambda record: record["create_time"], reverse=True)
        items = [status(record) for record in found[(page - 1) * page_size : page * page_size]]
        return success({"items": items, "total": len(found), "page": page, "page_size": page_size})

    @router.post("/sandboxes/batch")
    async def batch(body: BatchRequest) -> JSONResponse:
        if len(body.sandbox_ids) > MAX_BATCH:
            raise Failure(f"sandbox_ids has {len(body.sandbox_ids)} entries; at most {MAX_BATCH}", BAD_REQUEST)
        known = [control.records[one] for one in body.sandbox_ids if one in control.records]
        return success([status(record) for record in known])

    @router.post("/commit")
    async def commit(body: CommitBody) -> JSONResponse:
        answer = await control.commit(body.sandbox_id, body.image_tag)
        return success({"stdout": answer.get("image", ""), "stderr": "", "exit_code": 0, **answer})

    @router.get("/commit/{sandbox_id}")
    async def commit_phase(sandbox_id: str) -> JSONResponse:
        control.record(sandbox_id)
        if sandbox_id not in control.commits:
            raise Failure("no commit was asked for", BAD_REQUEST, sandbox_id)
        return success(control.commits[sandbox_id])

    @router.get("/get_token")
    async def get_token() -> JSONResponse:
        raise Failure("no object store is configured; files go through /upload", INTERNAL_SERVER_ERROR)

    return router
