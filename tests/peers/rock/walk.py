"""Runs in the peer's own Python: walks a sandbox with the official SDK and prints one JSON object of what it saw."""

import asyncio
import json
import os
import sys
import tempfile

sys.tracebacklimit = 0

from rock.actions import (  # noqa: E402
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)
from rock.sdk.sandbox.client import Sandbox  # noqa: E402
from rock.sdk.sandbox.config import SandboxConfig  # noqa: E402


async def failure(awaitable):
    try:
        await awaitable
    except Exception as error:
        return str(error)
    return None


async def main(url: str) -> dict:
    seen = {}
    sandbox = Sandbox(SandboxConfig(base_url=url, image="local", memory="512m", cpus=1, cluster="local"))
    await sandbox.start()
    seen["alive"] = (await sandbox.is_alive()).is_alive
    status = await sandbox.get_status()
    seen["phases"] = [status.status["image_pull"]["status"], status.status["docker_run"]["status"]]
    result = await sandbox.execute(Command(command=["sh", "-c", "echo out; echo err >&2; exit 3"]))
    seen["execute"] = [result.stdout, result.stderr, result.exit_code]
    seen["execute_missing"] = await failure(sandbox.execute(Command(command=["/no/such"])))
    await sandbox.create_session(CreateBashSessionRequest(session="s"))
    first = await sandbox.arun("cd /usr; A=5; echo ready", session="s")
    second = await sandbox.arun("pwd; echo $A", session="s")
    seen["session"] = [first.output, first.exit_code, second.output]
    seen["session_failure"] = await failure(sandbox.arun("false", session="s"))
    long = await sandbox.arun(
        "bash -c 'sleep 1; echo long'", session="s", mode="nohup", wait_timeout=40, wait_interval=1
    )
    seen["nohup"] = [long.output, long.exit_code]
    await sandbox.write_file(WriteFileRequest(path="/tmp/w", content="grün"))
    seen["read"] = (await sandbox.read_file(ReadFileRequest(path="/tmp/w"))).content
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "up")
        with open(path, "w") as stream:
            stream.write("uploaded")
        seen["upload"] = (await sandbox.upload_by_path(path, "/tmp/up")).success
    seen["uploaded"] = (await sandbox.read_file(ReadFileRequest(path="/tmp/up"))).content
    await sandbox.close_session(CloseBashSessionRequest(session="s"))
    await sandbox.stop()
    seen["after_stop"] = await failure(sandbox.execute(Command(command=["true"])))
    bad = Sandbox(SandboxConfig(base_url=url, image="no/such:1", memory="512m", cpus=1, cluster="local"))
    seen["bad_image"] = await failure(bad.start())
    return seen


print("SEEN " + json.dumps(asyncio.run(main(sys.argv[1]))))
