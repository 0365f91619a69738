"""The command `rock`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

import click

from rock import __version__
from rock.errors import RockError

# name of the command -> (module, object, one line of help); modules are imported only for the command that runs
_COMMANDS = {
    "admin": ("rock.cli.admin", "admin", "The control plane."),
    "worker": ("rock.cli.worker", "worker", "The host rocklet of this machine, which makes the sandboxes."),
    "sandbox": ("rock.cli.sandbox", "sandbox", "Start, use and stop sandboxes."),
    "image": ("rock.cli.image", "image", "Images of the local runtime."),
    "crypto": ("rock.cli.crypto", "crypto", "Keys, encryption, decryption."),
    "code-service": ("rock.cli.code_service", "code_service", "POST /run_code: programs in sandboxes, for graders."),
    "doctor": ("rock.cli.doctor", "doctor", "Says what this machine can do for sandboxes."),
    "job": ("rock.cli.job", "job", "Bash and Harbor jobs in sandboxes."),
    "datasets": ("rock.datasets.cli", "datasets", "Task datasets."),
    "model-service": ("rock.model_service.cli", "model_service", "The ModelService inside a sandbox."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(name for name, (module, _, _) in _COMMANDS.items() if _exists(module))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS or not _exists(_COMMANDS[name][0]):
            return None
        module, attribute, _ = _COMMANDS[name]
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rock")
def _group() -> None:
    """Sandboxes for agent reinforcement learning."""


def main() -> None:
    """Entry point: errors of this package become one line and exit code 1."""
    try:
        _group.main(standalone_mode=True)
    except RockError as error:
        if os.environ.get("ROCK_TRACEBACK"):
            raise
        click.echo(f"rock: {error}", err=True)
        sys.exit(1)
