"""The web application of the code service."""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from rock.code_service.messages import RunAnswer, RunCode, RunResult
from rock.code_service.pool import SandboxPool
from rock.errors import CommandTimeout, RockError, SandboxError, SandboxGone, SandboxNotFound
from rock.sdk import Sandbox, SandboxConfig

_FOLDER = "/tmp/run"
_QUEUE_SECONDS = 300.0
_MARGIN_SECONDS = 60.0
_PROGRAMS = {"python": ("main.py", "python3"), "bash": ("main.sh", "bash")}


def create_code_app(
    config: SandboxConfig, pool_size: int, max_concurrency: int, on_open: Callable[[], None] = lambda: None
) -> FastAPI:
    """`POST /run_code` over sandboxes of an admin.

    Args:
        config: of every sandbox; its memory and cpus bound each run.
        pool_size: sandboxes that are kept ready.
        max_concurrency: runs at once; others wait.
    """
    pool = SandboxPool(lambda: Sandbox(config), pool_size)
    slots = asyncio.Semaphore(max_concurrency)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pool.fill()
        on_open()
        yield
        await pool.close()

    app = FastAPI(title="ROCK code service", lifespan=lifespan)

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"message": "hello, ROCK code service!"}

    @app.post("/run_code")
    async def run_code(request: RunCode) -> RunAnswer:
        try:
            async with asyncio.timeout(_QUEUE_SECONDS):
                await slots.acquire()
        except TimeoutError:
            return RunAnswer(status="SandboxError", message=f"no free sandbox within {_QUEUE_SECONDS:g} s")
        try:
            async with asyncio.timeout(config.startup_timeout + request.run_timeout + _MARGIN_SECONDS):
                return await _run_in_pool(pool, request)
        except (RockError, TimeoutError, OSError) as error:
            return RunAnswer(status="SandboxError", message=f"{type(error).__name__}: {error}")
        finally:
            slots.release()

    return app


async def _run_in_pool(pool: SandboxPool, request: RunCode) -> RunAnswer:
    sandbox = await pool.take()
    try:
        try:
            await _upload(sandbox, request)
        except (SandboxGone, SandboxNotFound):  # it was cleared while it waited
            pool.discard(sandbox)
            sandbox = await pool.take_new()
            await _upload(sandbox, request)
        return await _run(sandbox, request)
    finally:
        pool.discard(sandbox)


async def _upload(sandbox: Sandbox, request: RunCode) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        main, _ = _PROGRAMS[request.language]
        (folder / main).write_text(request.code, encoding="utf-8", errors="surrogateescape")
        for path, content in request.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(base64.b64decode(content))
        await sandbox.fs.upload_dir(folder, _FOLDER)


async def _run(sandbox: Sandbox, request: RunCode) -> RunAnswer:
    main, program = _PROGRAMS[request.language]
    limit = f"ulimit -v {request.memory_limit_MB * 1024} && " if request.memory_limit_MB > 0 else ""
    start = time.monotonic()
    try:
        done = await sandbox.execute(
            ["bash", "-c", f"{limit}exec {program} {main}"],
            timeout=request.run_timeout,
            cwd=_FOLDER,
            stdin=request.stdin or "",
        )
    except CommandTimeout as error:
        result = RunResult(
            status="TimeLimitExceeded",
            execution_time=time.monotonic() - start,
            stdout=str(error.details.get("stdout", "")),
            stderr=str(error.details.get("stderr", "")),
        )
        return RunAnswer(status="Failed", run_result=result, executor_pod_name=sandbox.sandbox_id)
    result = RunResult(
        status="Finished",
        execution_time=time.monotonic() - start,
        return_code=done.exit_code,
        stdout=done.stdout,
        stderr=done.stderr,
    )
    return RunAnswer(
        status="Success" if done.exit_code == 0 else "Failed",
        run_result=result,
        executor_pod_name=sandbox.sandbox_id,
        files=await _fetch(sandbox, request.fetch_files),
    )


async def _fetch(sandbox: Sandbox, names: list[str]) -> dict[str, str]:
    """Content of the files that are there, in base64."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            target = Path(folder, str(number))
            try:
                await sandbox.fs.download_file(f"{_FOLDER}/{name}", target)
            except (SandboxGone, SandboxNotFound):
                raise
            except SandboxError:
                continue  # the program did not write it
            found[name] = base64.b64encode(target.read_bytes()).decode()
    return found
