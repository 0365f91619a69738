"""Local sandboxes of one test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rock.runtime.local import LocalRoot, NamespaceSandbox, SandboxSpec

MakeSandbox = Callable[..., Awaitable[NamespaceSandbox]]


@pytest.fixture
def local_root(rock_state: Path) -> LocalRoot:
    return LocalRoot(rock_state / "local")


@pytest.fixture
async def make_sandbox(local_root: LocalRoot) -> AsyncIterator[MakeSandbox]:
    made: list[NamespaceSandbox] = []

    async def make(sandbox_id: str = "box", **fields: Any) -> NamespaceSandbox:
        sandbox = NamespaceSandbox(local_root, SandboxSpec(sandbox_id, **fields))
        made.append(sandbox)
        await sandbox.start()
        return sandbox

    yield make
    await asyncio.gather(*(one.stop() for one in made))
    assert list((local_root.folder / "run").iterdir()) == []
