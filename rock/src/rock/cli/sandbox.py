"""`rock sandbox`: start, exec, list, status, upload, download, stop."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from rock.sdk.config import SandboxConfig
from rock.sdk.sandbox import Sandbox


def _pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    pairs = dict(value.partition("=")[::2] for value in values)
    if any("=" not in value for value in values):
        raise click.BadParameter("write NAME=VALUE", param_hint=option)
    return pairs


def connection(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which admin; the command gets `config`."""

    @click.option("--base-url", envvar="ROCK_BASE_URL", default="http://127.0.0.1:18080", show_default=True)
    @click.option("--cluster", envvar="ROCK_DEFAULT_CLUSTER", default="local", show_default=True)
    @click.option("--extra-header", "headers", multiple=True, metavar="NAME=VALUE", help="sent with every request")
    @click.option("--auth-token", envvar="ROCK_AUTH_TOKEN", help="sent as X-API-Key")
    @wraps(function)
    def with_config(base_url: str, cluster: str, headers: tuple[str, ...], auth_token: str | None, **rest: Any) -> None:
        extra = _pairs(headers, "--extra-header")
        if auth_token:
            extra["X-API-Key"] = auth_token
        config = SandboxConfig(base_url=base_url, cluster=cluster, extra_headers=extra)
        asyncio.run(function(config, **rest))

    return with_config


@click.group()
def sandbox() -> None:
    """Start, use and stop sandboxes."""


@sandbox.command("start")
@connection
@click.option("--image", default="local", show_default=True)
@click.option("--memory", default="2g", show_default=True)
@click.option("--cpus", default=1.0, show_default=True)
@click.option("--auto-clear-seconds", default=3600.0, show_default=True)
@click.option("--startup-timeout", default=180.0, show_default=True)
async def start(config: SandboxConfig, **options: Any) -> None:
    """Start a sandbox and print its id."""
    box = Sandbox(config.model_copy(update=options))
    try:
        await box.start()
        click.echo(box.sandbox_id)
    finally:
        await box.transport.close()


async def _attached(config: SandboxConfig, sandbox_id: str) -> Sandbox:
    return await Sandbox.attach(sandbox_id, config)


@sandbox.command("exec", context_settings={"ignore_unknown_options": True})
@connection
@click.option("--timeout", default=1200.0, show_default=True)
@click.option("--cwd")
@click.option("--user")
@click.argument("sandbox_id")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
async def execute(
    config: SandboxConfig, sandbox_id: str, command: tuple[str, ...], timeout: float, cwd: str | None, user: str | None
) -> None:
    """Run a command; its exit code becomes ours. One word runs in bash, several without a shell."""
    box = await _attached(config, sandbox_id)
    try:
        words: str | list[str] = command[0] if len(command) == 1 else list(command)
        result = await box.execute(words, timeout=timeout, cwd=cwd, user=user)
    finally:
        await box.transport.close()
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    sys.exit(result.exit_code or 0)


@sandbox.command("list")
@connection
@click.option("--state")
@click.option("--page-size", default=100, show_default=True)
async def listing(config: SandboxConfig, state: str | None, page_size: int) -> None:
    """List sandboxes, youngest first."""
    box = Sandbox(config)
    try:
        params = {"page_size": page_size, **({"state": state} if state else {})}
        page = await box.transport.call("GET", "/sandboxes", params=params)
    finally:
        await box.transport.close()
    for item in page["items"]:
        click.echo(f"{item['sandbox_id']}  {item['state']:8}  {item['image']}  {item['message']}".rstrip())


@sandbox.command("status")
@connection
@click.argument("sandbox_id")
async def status(config: SandboxConfig, sandbox_id: str) -> None:
    """Print all that the admin knows of a sandbox, as JSON."""
    box = await _attached(config, sandbox_id)
    try:
        click.echo(json.dumps((await box.get_status()).model_dump(), indent=2))
    finally:
        await box.transport.close()


@sandbox.command("upload")
@connection
@click.argument("sandbox_id")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target")
async def upload(config: SandboxConfig, sandbox_id: str, source: Path, target: str) -> None:
    """Copy a file, or the content of a folder, in."""
    box = await _attached(config, sandbox_id)
    try:
        await (box.fs.upload_dir(source, target) if source.is_dir() else box.upload_by_path(source, target))
    finally:
        await box.transport.close()


@sandbox.command("download")
@connection
@click.option("--dir", "folder", is_flag=True, help="the source is a folder")
@click.argument("sandbox_id")
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
async def download(config: SandboxConfig, sandbox_id: str, source: str, target: Path, folder: bool) -> None:
    """Copy a file (or --dir: the content of a folder) out."""
    box = await _attached(config, sandbox_id)
    try:
        if folder:
            for name in await box.fs.download_dir(source, target):
                click.echo(f"left out: {name}", err=True)
        else:
            await box.fs.download_file(source, target)
    finally:
        await box.transport.close()


@sandbox.command("stop")
@connection
@click.argument("sandbox_ids", nargs=-1, required=True)
async def stop(config: SandboxConfig, sandbox_ids: tuple[str, ...]) -> None:
    """Stop sandboxes."""
    for sandbox_id in sandbox_ids:
        box = await _attached(config, sandbox_id)
        try:
            click.echo(await box.transport.call("POST", "/stop", json={"sandbox_id": sandbox_id}))
        finally:
            await box.transport.close()
