"""`rock worker start`: the host rocklet in the foreground."""

from __future__ import annotations

import click

from rock.cli.admin import config_option


@click.group()
def worker() -> None:
    """The host rocklet of this machine."""


@worker.command()
@config_option
@click.option("--host", help="overrides worker.host")
@click.option("--port", type=click.IntRange(0, 65535), help="overrides worker.port")
def start(config_path: str | None, host: str | None, port: int | None) -> None:
    """Serve the host rocklet until Ctrl-C; its sandboxes end with it."""
    from rock.cli.service import bind, configure_logs, run_service
    from rock.config import load_config
    from rock.rocklet.host import create_host_app

    config = load_config(config_path)
    config.worker.host, config.worker.port = host or config.worker.host, config.worker.port if port is None else port
    configure_logs(config.logs.level)
    config.state_folder.mkdir(parents=True, exist_ok=True)
    listener = bind(config.worker.host, config.worker.port, "worker.port")
    run_service(lambda on_open: create_host_app(config, on_open), listener, "host rocklet")
