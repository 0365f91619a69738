"""The command ``tinker``."""

from __future__ import annotations

import sys

import click

from .. import __version__
from .output import CliError

_INTERRUPTED = 130
_COMMANDS = {
    "auth": "Log in, log out, see who you are.",
    "billing": "Usage and storage figures.",
    "checkpoint": "List, inspect, publish, download and delete checkpoints.",
    "model": "The models that the server offers.",
    "run": "Training runs.",
    "session": "Sessions.",
}


class _LazyGroup(click.Group):
    """Loads the module of a command group when the group is used: ``tinker version`` needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        import importlib

        group: click.Command = importlib.import_module(f".{cmd_name}", __name__).group
        return group


@click.group(cls=_LazyGroup)
@click.option(
    "-f",
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print results.",
)
def tinker(output_format: str) -> None:
    """Look at and manage what a Tinker server holds. The server is TINKER_BASE_URL, the key TINKER_API_KEY."""


@tinker.command()
def version() -> None:
    """Print the API level of this SDK."""
    click.echo(f"tinker {__version__}")


def main() -> None:
    """Entry point: errors go to stderr with exit code 1, Ctrl-C gives 130."""
    try:
        tinker.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("Interrupted", err=True)
        sys.exit(_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except CliError as error:
        _fail(str(error), error.details)
    except Exception as error:
        _fail(*_describe(error))


def _fail(message: str, details: str) -> None:
    click.echo(f"Error: {message}", err=True)
    if details:
        click.echo(details, err=True)
    sys.exit(1)


def _describe(error: Exception) -> tuple[str, str]:
    from .._errors import APIConnectionError, APIStatusError, AuthenticationError, NotFoundError, TinkerError

    if isinstance(error, AuthenticationError):
        return "The server refused the credential", f"{error}\nSet TINKER_API_KEY or run: tinker auth login"
    if isinstance(error, NotFoundError):
        return "Not found", str(error)
    if isinstance(error, APIStatusError):
        return f"The server answered {error.status_code}", str(error)
    if isinstance(error, APIConnectionError):
        return (
            "The server cannot be reached",
            f"{error.message}\nIs TINKER_BASE_URL right? It leads to {error.request.url.netloc.decode()}",
        )
    if isinstance(error, TinkerError):
        return str(error), ""
    return f"Unexpected error occurred: {error}", ""
