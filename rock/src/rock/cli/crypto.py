"""`rock crypto`: generate-key, encrypt, decrypt."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rock.config import read_key_file, write_key_file
from rock.errors import ConfigError

_PATH = click.Path(path_type=Path)


@click.group()
def crypto() -> None:
    """Keys, encryption, decryption (AES-256-GCM)."""


@crypto.command("generate-key")
@click.option("--file", "path", type=_PATH, help="write it there (mode 0600) and print nothing")
def generate(path: Path | None) -> None:
    """Make a key: base64 of 32 random bytes."""
    from rock.admin.encryption import generate_key

    if path is None:
        click.echo(generate_key())
        return
    try:
        write_key_file(path, generate_key())
    except FileExistsError:
        raise ConfigError(f"{path} exists already; remove it or name another file") from None
    click.echo(f"wrote {path}", err=True)


@crypto.command("encrypt")
@click.option("--key-file", type=_PATH, required=True, help="file with the key, mode 0600")
def encrypt_text(key_file: Path) -> None:
    """Encrypt standard input (without its last newline)."""
    from rock.admin.encryption import encrypt

    click.echo(encrypt(read_key_file(key_file)[0], sys.stdin.read().removesuffix("\n")))


@crypto.command("decrypt")
@click.option("--key-file", type=_PATH, required=True, help="file with the key, mode 0600")
def decrypt_text(key_file: Path) -> None:
    """Decrypt standard input."""
    from rock.admin.encryption import decrypt

    click.echo(decrypt(read_key_file(key_file)[0], sys.stdin.read().strip()))
