"""``tinker-backend``: serve, status, checkpoints, doctor."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import click

from . import __version__
from .config import EngineConfig, RuntimeConfig
from .errors import BackendError, ConfigError
from .supervisor import Supervisor


class _Commands(click.Group):
    """Loads the commands of other modules when they are asked for, so that the server starts sooner."""

    elsewhere: ClassVar = {"keys": "auth.command", "conformance": "conformance.command"}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted([*super().list_commands(ctx), *self.elsewhere])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in self.elsewhere:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"{__package__}.{self.elsewhere[cmd_name]}"), cmd_name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tinker-backend")
def main() -> None:
    """A self-hosted server of the Tinker API."""


@main.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True, help="runtime.yaml")
@click.option("--host", help="Instead of backend.host")
@click.option("--port", type=int, help="Instead of backend.port; 0 takes a free one")
def serve(config_path: Path, host: str | None, port: int | None) -> None:
    """Run the server until SIGINT or SIGTERM."""
    try:
        config = RuntimeConfig.load(config_path)
        changes = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
        config = config.model_copy(update={"backend": config.backend.model_copy(update=changes)})
        # A mistake in engine.yaml is told before a process starts.
        engine = EngineConfig.load(config.runtime.engine) if config.runtime.command is None else None
        _log_to(config)
        click.echo(_shown(config))
        config.check_listen_address()
        if engine is not None:
            _check_engine(config, engine)
        _raise_file_limit()
        listener = _listen(config.backend.host, config.backend.port)
        supervisor = Supervisor(config.runtime, config.logs.folder)
        # The runtime loads torch while this process loads what a server needs.
        supervisor.launch()
        try:
            from .server.serving import serve_until_signal

            code = serve_until_signal(config, supervisor, listener)
        finally:
            supervisor.abandon()
    except (ConfigError, BackendError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _check_engine(config: RuntimeConfig, engine: EngineConfig) -> None:
    """Raises ConfigError for what a runtime would find wrong with models and devices after it was started for nothing."""
    from .doctor import start_problems

    if problems := start_problems(config, engine):
        lines = "".join(f"\n  {text}" for text in problems)
        raise ConfigError(f"{config.runtime.engine} cannot be used:{lines}")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle off only where the protocol is named; with it every answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BackendError(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what uses the port or set backend.port"
        ) from error
    listener.listen(4096)
    listener.set_inheritable(False)
    return listener


def _raise_file_limit() -> None:
    """Each long poll is a connection, so thousands of open files are normal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _log_to(config: RuntimeConfig) -> None:
    try:
        config.logs.folder.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(config.logs.folder / "backend.log")
    except OSError as error:
        raise ConfigError(f"logs.folder {config.logs.folder} cannot be written: {error.strerror}") from error
    form = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    root = logging.getLogger()
    root.setLevel(config.logs.level.upper())
    for handler in (logging.StreamHandler(sys.stderr), file):
        handler.setFormatter(form)
        root.addHandler(handler)
    # Request lines of the HTTP stack may carry signed links.
    for name in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _shown(config: RuntimeConfig) -> str:
    """The configuration in effect, without secrets."""
    document = config.model_dump(mode="json")
    if config.ledger.url and config.ledger.url != "memory":
        import sqlalchemy as sa

        with contextlib.suppress(sa.exc.ArgumentError):
            document["ledger"]["url"] = sa.make_url(config.ledger.url).render_as_string(hide_password=True)
    return json.dumps(document, indent=2)


def _ask(base_url: str, path: str) -> Any:
    import httpx

    headers = {"X-API-Key": key} if (key := os.environ.get("TINKER_API_KEY")) else {}
    try:
        answer = httpx.get(f"{base_url.rstrip('/')}{path}", headers=headers, timeout=30)
    except httpx.HTTPError as error:
        raise click.ClickException(f"{base_url} does not answer: {error}; is the server running?") from error
    if answer.status_code == 401:
        why = "knows no such key" if key else "wants a key"
        raise click.ClickException(f"{base_url} {why}; set TINKER_API_KEY (tinker-backend keys create makes one)")
    if answer.status_code != 200:
        raise click.ClickException(f"{base_url} answered {answer.status_code}: {answer.text[:500]}")
    return answer.json()


_BASE_URL = click.option(
    "--base-url", envvar="TINKER_BASE_URL", default="http://127.0.0.1:19210", show_default=True, help="The server"
)


@main.command()
@_BASE_URL
def status(base_url: str) -> None:
    """Show what a running server does (key from TINKER_API_KEY)."""
    click.echo(json.dumps(_ask(base_url, "/api/v1/status"), indent=2))


@main.command()
@_BASE_URL
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines")
def checkpoints(base_url: str, as_json: bool) -> None:
    """List checkpoints (key from TINKER_API_KEY)."""
    found = _ask(base_url, "/api/v1/checkpoints?limit=10000")["checkpoints"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for item in found:
        expiry = f"  expires {item['expires_at']}" if item["expires_at"] else ""
        click.echo(f"{item['tinker_path']}  {(item['size_bytes'] or 0) / 1e6:.1f} MB  {item['time']}{expiry}")
    if not found:
        click.echo("no checkpoints")


@main.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True, help="runtime.yaml")
@click.option(
    "--gpu-gib", type=click.FloatRange(min=1), help="Memory of a GPU for the estimate, instead of this machine's"
)
def doctor(config_path: Path, gpu_gib: float | None) -> None:
    """Look for what would keep the server from running; exits with 1 when something does."""
    problems = 0

    def report(good: bool, text: str) -> None:
        nonlocal problems
        problems += not good
        click.echo(f"{'ok  ' if good else 'FAIL'}  {text}")

    try:
        config = RuntimeConfig.load(config_path)
        report(True, f"{config_path} can be read")
        config.check_listen_address()
        engine = EngineConfig.load(config.runtime.engine)
        report(True, f"{config.runtime.engine} can be read; base model {engine.pretrain}")
    except ConfigError as error:
        report(False, str(error))
        sys.exit(1)
    try:
        _listen(config.backend.host, config.backend.port).close()
        report(True, f"{config.backend.host}:{config.backend.port} is free")
    except BackendError as error:
        report(False, str(error))
    from .doctor import examine

    for good, text in examine(config, engine, gpu_gib):
        report(good, text)
    sys.exit(1 if problems else 0)
