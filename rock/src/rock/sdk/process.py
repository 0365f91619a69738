"""`sandbox.process`: scripts."""

from __future__ import annotations

import shlex
import uuid
from typing import TYPE_CHECKING, Literal

from rock.sdk.responses import Observation

if TYPE_CHECKING:
    from rock.sdk.sandbox import Sandbox


class Process:
    """Runs whole scripts in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def execute_script(
        self,
        script_content: str,
        script_name: str | None = None,
        *,
        interpreter: str = "bash",
        session: str | None = None,
        mode: Literal["normal", "nohup"] = "nohup",
        wait_timeout: float = 300.0,
        cleanup: bool = True,
    ) -> Observation:
        """Writes a script to /tmp of the sandbox, runs it, and removes it again.

        Raises:
            CommandTimeout: it did not end within `wait_timeout` seconds.
        """
        path = f"/tmp/{script_name or f'script-{uuid.uuid4().hex[:12]}.sh'}"
        await self._sandbox.write_file(path, script_content, mode=0o700)
        try:
            command = f"{interpreter} {shlex.quote(path)}"
            return await self._sandbox.arun(command, session=session, mode=mode, wait_timeout=wait_timeout)
        finally:
            if cleanup:
                await self._sandbox.execute(["rm", "-f", path], timeout=60)
