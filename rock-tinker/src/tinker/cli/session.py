"""tinker session"""

from __future__ import annotations

from pathlib import Path

import click
import httpx

from .output import CliError, print_json, size, wants_json
from .server import rest_client


@click.group("session")
def group() -> None:
    """Sessions."""


@group.command("export-trace")
@click.argument("session_id")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write (default: <session id>.trace).")
@click.option("--url-only", is_flag=True, help="Print the address instead of downloading.")
def export_trace(session_id: str, output: Path | None, url_only: bool) -> None:
    """Export what happened in a session."""
    click.echo(f"Exporting trace for session {session_id} (this may take a while)...", err=True)
    url = rest_client().export_session_trace(session_id).result()
    if url_only:
        if wants_json():
            print_json({"session_id": session_id, "url": url})
        else:
            click.echo(url)
        return
    target = output or Path(f"{session_id.replace('/', '_')}.trace")
    written = _save(url, target)
    if wants_json():
        print_json({"session_id": session_id, "destination": str(target), "file_size_bytes": written})
    else:
        click.echo(f"{size(written)} written to {target}")


def _save(url: str, target: Path) -> int:
    partial = target.with_name(target.name + ".part")
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=60.0) as response, partial.open("wb") as file:
            if response.status_code >= 400:
                raise CliError(f"The trace address answered {response.status_code}")
            written = sum(file.write(block) for block in response.iter_bytes())
        partial.replace(target)
        return written
    except httpx.HTTPError as error:
        raise CliError("The trace could not be downloaded", str(error)) from error
    finally:
        partial.unlink(missing_ok=True)
