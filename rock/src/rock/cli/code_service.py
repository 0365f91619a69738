"""`rock code-service start`: programs for graders over HTTP, in the foreground."""

from __future__ import annotations

import click


@click.group(name="code-service")
def code_service() -> None:
    """POST /run_code: programs in sandboxes, for graders."""


@code_service.command()
@click.option("--base-url", help="The admin; default: ROCK_BASE_URL, else http://127.0.0.1:18080")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of this machine's loopback")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535))
@click.option("--image", default="local", show_default=True)
@click.option("--memory", default="1g", show_default=True, help="Memory of each run's sandbox")
@click.option("--cpus", default=1.0, show_default=True)
@click.option("--pool", default=4, show_default=True, type=click.IntRange(min=0), help="Sandboxes kept ready")
@click.option("--max-concurrency", default=8, show_default=True, type=click.IntRange(min=1), help="Runs at once")
@click.option("--key-file", type=click.Path(dir_okay=False), help="Key of the admin (mode 0600)")
def start(
    base_url: str | None, host: str, port: int, image: str, memory: str, cpus: float, pool: int, max_concurrency: int,
    key_file: str | None,
) -> None:  # fmt: skip
    """Serve until Ctrl-C. Each run has a fresh sandbox without network."""
    from rock.cli.service import bind, configure_logs, run_service
    from rock.code_service.app import create_code_app
    from rock.config import read_key_file
    from rock.errors import ConfigError
    from rock.sdk import SandboxConfig

    if host not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(f"--host {host}: the service asks for no key; use 127.0.0.1, with a proxy of yours before it")
    configure_logs("info")
    settings = {
        "image": image, "memory": memory, "cpus": cpus, "auto_clear_seconds": 1800,
        **({"base_url": base_url} if base_url else {}),
        **({"extra_headers": {"X-API-Key": read_key_file(key_file)[0]}} if key_file else {}),
    }  # fmt: skip
    config = SandboxConfig.model_validate(settings)
    listener = bind(host, port, "--port")
    run_service(lambda on_open: create_code_app(config, pool, max_concurrency, on_open), listener, "ROCK code service")
