"""`rock admin start`: the control plane in the foreground."""

from __future__ import annotations

import click

config_option = click.option(
    "--config", "config_path", type=click.Path(dir_okay=False), help="admin.yaml; default: built-in values"
)


@click.group()
def admin() -> None:
    """The control plane."""


@admin.command()
@config_option
@click.option("--host", help="overrides admin.host")
@click.option("--port", type=click.IntRange(0, 65535), help="overrides admin.port")
def start(config_path: str | None, host: str | None, port: int | None) -> None:
    """Serve the admin until Ctrl-C. Sandboxes belong to the worker and live on."""
    from rock.admin.app import create_admin_app
    from rock.cli.service import bind, configure_logs, run_service
    from rock.config import check_exposure, load_config

    config = load_config(config_path)
    config.admin.host, config.admin.port = host or config.admin.host, config.admin.port if port is None else port
    check_exposure(config)
    configure_logs(config.logs.level)
    listener = bind(config.admin.host, config.admin.port, "admin.port")
    run_service(lambda on_open: create_admin_app(config, on_open), listener, "ROCK admin")
