"""`sandbox.fs`: files and folders between the machine and a sandbox."""

from __future__ import annotations

import asyncio
import shlex
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rock.errors import SandboxError
from rock.runtime.local.archive import pack, unpack
from rock.sdk.responses import FileResult

if TYPE_CHECKING:
    from rock.sdk.sandbox import Sandbox

_CHUNK = 1 << 20
_SECONDS = 1800.0


class FileSystem:
    """File operations of one sandbox. Folders travel as tar streams; nothing in the image is needed for it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def upload_dir(self, source: str | Path, target: str) -> FileResult:
        """Copies the content of a folder into the folder `target`, which is made if it is missing.

        Raises:
            FileNotFoundError: `source` is not a folder.
        """
        source = Path(source)
        if not source.is_dir():
            raise FileNotFoundError(f"{source} is not a folder; files go through upload_by_path")
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(pack, str(source), archive)
            archive.seek(0)
            answer = await self._sandbox.transport.call(
                "POST", "/upload_dir", params={"sandbox_id": self._sandbox.sandbox_id, "path": target},
                content=_chunks(archive), timeout=_SECONDS,
            )  # fmt: skip
        return FileResult(**answer)

    async def upload_file(self, source: str | Path, target: str) -> FileResult:
        """Copies one file in."""
        return await self._sandbox.upload_by_path(source, target)

    async def download_file(self, source: str, target: str | Path) -> None:
        """Copies one file out, to exactly `target`; it appears there only when it is complete."""
        target = Path(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.part")
        try:
            await self._download("/download", source, draft)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    async def download_dir(self, source: str, target: str | Path) -> list[str]:
        """Copies the content of a folder out. Links that lead outside the folder and special files are left out.

        Returns:
            Names that were left out.
        """
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder, "archive.tar")
            await self._download("/download_dir", source, archive)
            with archive.open("rb") as stream:
                return await asyncio.to_thread(unpack, str(target), stream, False)

    async def _download(self, route: str, source: str, target: Path) -> None:
        params = {"sandbox_id": self._sandbox.sandbox_id, "path": source}
        async with self._sandbox.transport.stream(route, params, _SECONDS) as answer:
            with target.open("wb") as stream:
                async for chunk in answer.aiter_bytes(_CHUNK):
                    stream.write(chunk)

    async def chown(self, path: str, owner: str, recursive: bool = False) -> None:
        """Changes the owner ("user" or "user:group")."""
        await self._run(f"chown {'-R ' if recursive else ''}-- {shlex.quote(owner)} {shlex.quote(path)}")

    async def chmod(self, path: str, mode: str, recursive: bool = False) -> None:
        """Changes the mode ("755", "u+x")."""
        await self._run(f"chmod {'-R ' if recursive else ''}-- {shlex.quote(mode)} {shlex.quote(path)}")

    async def _run(self, command: str) -> None:
        result = await self._sandbox.execute(command, timeout=120)
        if result.exit_code != 0:
            raise SandboxError(f"{command}: {result.stderr.strip()}", self._sandbox.sandbox_id)


async def _chunks(stream: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(stream.read, _CHUNK):
        yield chunk
