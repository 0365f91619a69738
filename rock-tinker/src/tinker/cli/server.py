"""The server as the commands reach it: one try, because a person waits."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from .._admin import AdminClient
from .._rest import RestClient
from .._settings import resolve_base_url
from .output import CliError

_CONNECT_SECONDS = 10.0


def rest_client() -> RestClient:
    """A client of a server that can be reached. Raises CliError."""
    client = RestClient()
    check_server()
    return client


def admin_client() -> AdminClient:
    """The same for what an administrator asks."""
    client = AdminClient()
    check_server()
    return client


def check_server() -> None:
    """Raises CliError when nothing listens there. The clients themselves would try on for minutes, which suits training."""
    url = resolve_base_url()
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), _CONNECT_SECONDS) as connection:
            if parts.scheme == "https":
                _speak_tls(connection, parts.hostname or "")
    except OSError as error:
        hint = " (is it http://?)" if isinstance(error, ssl.SSLError) else ""
        raise CliError(
            f"The server {url} cannot be reached",
            f"{error.strerror or error}{hint}. TINKER_BASE_URL names the server; tinker-backend serve starts one",
        ) from error


def _speak_tls(connection: socket.socket, host: str) -> None:
    """Raises OSError when the other side does not speak TLS. Whether it is the right one, the client itself checks."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.wrap_socket(connection, server_hostname=host).close()
