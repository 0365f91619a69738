"""``rock model-service``: start, stop, watch-agent, next, respond."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import click

from rock.model_service import pull
from rock.model_service.process import ServiceProcessError, bind, read_state, serve, start_detached
from rock.model_service.process import stop as stop_process

DATA_DIR_VARIABLE = "ROCK_MODEL_SERVICE_DATA_DIR"


def _data_dir(value: Path | None) -> Path:
    return (value or Path(os.environ.get(DATA_DIR_VARIABLE) or "/data/logs")).absolute()


data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help=f"Folder of state, log and trajectory (${DATA_DIR_VARIABLE}, /data/logs).",
)
port_option = click.option("--port", default=28080, show_default=True, type=click.IntRange(0, 65535))
token_option = click.option(
    "--token-file", type=click.Path(path_type=Path), help="File with the secret that pullers must show."
)


@click.group(name="model-service")
def model_service() -> None:
    """OpenAI endpoint in a sandbox whose answers come from a puller outside."""


@model_service.command()
@click.option("--type", "kind", type=click.Choice(["local", "proxy"]), default="local", show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@port_option
@data_dir_option
@token_option
@click.option("--model", "models", multiple=True, help="Name shown by /v1/models (may be repeated).")
@click.option(
    "--request-timeout", default=1800.0, show_default=True, help="Seconds that a request waits for its answer."
)
@click.option("--start-timeout", default=30.0, show_default=True, help="Seconds until the service must be healthy.")
@click.option("--foreground", is_flag=True, help="Stay in this process until SIGTERM.")
@click.option("--proxy-base-url", help="Proxy mode: upstream, for example http://127.0.0.1:8000/v1.")
@click.option(
    "--proxy-rule", "rules", multiple=True, help="Proxy mode: MODEL=URL, may be repeated; MODEL 'default' is the rest."
)
@click.option("--retryable-status-codes", default="429,500", show_default=True, help="Proxy mode.")
@click.option(
    "--recording-file", type=click.Path(path_type=Path), help="Proxy mode: write each call to this JSON-lines file."
)
@click.option(
    "--replay-file", type=click.Path(path_type=Path), help="Proxy mode: answer from a recording instead of upstream."
)
def start(
    kind: str,
    host: str,
    port: int,
    data_dir: Path | None,
    token_file: Path | None,
    models: tuple[str, ...],
    request_timeout: float,
    start_timeout: float,
    foreground: bool,
    proxy_base_url: str | None,
    rules: tuple[str, ...],
    retryable_status_codes: str,
    recording_file: Path | None,
    replay_file: Path | None,
) -> None:
    """Start the service and wait until it answers; prints its address."""
    folder = _data_dir(data_dir)
    folder.mkdir(parents=True, exist_ok=True)

    def run() -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        logging.getLogger("httpx").setLevel(logging.WARNING)
        if kind == "proxy":
            from rock.model_service.proxy import ProxyConfig, ProxyServer, parse_rules

            config = ProxyConfig(
                base_url=proxy_base_url,
                rules=parse_rules(rules),
                retryable_status=frozenset(int(code) for code in retryable_status_codes.split(",") if code.strip()),
                request_timeout=request_timeout,
                recording_file=recording_file,
                replay_file=replay_file,
            )
            serve(ProxyServer(config).app(), listener, folder)
            return
        from rock.model_service.server import ModelServiceServer, ServiceConfig

        token = token_file.read_text().strip() if token_file else None
        service = ModelServiceServer(
            ServiceConfig(data_dir=folder, models=models or ("local",), request_timeout=request_timeout, token=token)
        )
        serve(service.app(), listener, folder, on_signal=lambda: service.close("the ModelService stopped", None))

    try:
        listener = bind(host, port)
        if foreground:
            run()
            return
        state = start_detached(run, folder, start_timeout)
    except (ServiceProcessError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps({"pid": state.pid, "host": state.host, "port": state.port, "data_dir": str(folder)}))


@model_service.command()
@data_dir_option
def stop(data_dir: Path | None) -> None:
    """Stop the service of a data folder."""
    click.echo("stopped" if stop_process(_data_dir(data_dir)) else "no ModelService runs on this folder")


@model_service.command(name="watch-agent")
@click.option("--pid", required=True, type=click.IntRange(1), help="Process whose end is the end of the session.")
@click.option(
    "--exit-code-file", type=click.Path(path_type=Path), help="File in which its wrapper leaves the exit status."
)
@port_option
@token_option
def watch_agent(pid: int, exit_code_file: Path | None, port: int, token_file: Path | None) -> None:
    """Let the service watch the agent's process."""
    body = json.dumps({"pid": pid, "exit_code_file": str(exit_code_file) if exit_code_file else None}).encode()
    token = token_file.read_text().strip() if token_file else None
    try:
        status, reply = pull.exchange("POST", "/v1/agent/watch", body, port=port, token=token, timeout=10)
    except OSError as error:
        raise click.ClickException(
            f"no ModelService answers on port {port} ({error}); start it or name its --port"
        ) from error
    click.echo(reply.decode())
    if status >= 400:
        raise SystemExit(1)


@model_service.command(name="next")
@click.option(
    "--after", default=0, show_default=True, type=click.IntRange(0), help="Highest index that was handled already."
)
@click.option(
    "--timeout", default=30.0, show_default=True, type=click.FloatRange(0, 60), help="Seconds to wait for a request."
)
@port_option
@token_option
def next_request(after: int, timeout: float, port: int, token_file: Path | None) -> None:
    """Print the next request of the agent as one framed line."""
    _run_pull(["next", "--after", str(after), "--timeout", str(timeout)], port, token_file)


@model_service.command()
@click.option("--index", required=True, type=click.IntRange(1), help="Index of the request that is answered.")
@click.option("--file", "answer", required=True, help="File with the answer as JSON; - is stdin.")
@port_option
@token_option
def respond(index: int, answer: str, port: int, token_file: Path | None) -> None:
    """Post the answer to a request."""
    _run_pull(["respond", "--index", str(index), "--file", answer], port, token_file)


def _run_pull(words: list[str], port: int, token_file: Path | None) -> None:
    common = ["--port", str(port), *(["--token-file", str(token_file)] if token_file else [])]
    try:
        sys.exit(pull.main([*common, *words]))
    except OSError as error:
        raise click.ClickException(
            f"no ModelService answers on port {port} ({error}); start it or name its --port"
        ) from error


@model_service.command()
@data_dir_option
def status(data_dir: Path | None) -> None:
    """Tell whether a service runs on a data folder, and where."""
    state = read_state(_data_dir(data_dir))
    if state is None or not state.alive:
        click.echo("no ModelService runs on this folder")
        raise SystemExit(1)
    click.echo(json.dumps({"pid": state.pid, "host": state.host, "port": state.port}))
