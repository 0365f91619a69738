"""What the environment says: server, credentials, tags, log level."""

from __future__ import annotations

import ipaddress
import logging
import os
from urllib.parse import urlsplit

from ._errors import TinkerError

DEFAULT_BASE_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
LOOPBACK_KEY = "tml-local"
_TRUE = ("1", "true", "yes", "on")

logger = logging.getLogger("tinker")


def resolve_base_url(base_url: str | None = None) -> str:
    """The argument, else TINKER_BASE_URL, else the hosted service; no slash at the end.

    Raises TinkerError for what is no address: tries to reach it would go on for minutes.
    """
    url = (base_url or os.environ.get("TINKER_BASE_URL") or DEFAULT_BASE_URL).rstrip("/")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        source = "base_url" if base_url else "TINKER_BASE_URL"
        raise TinkerError(f"{source} {url!r} is no address of a server; give one like http://127.0.0.1:19210")
    return url


def is_loopback(base_url: str) -> bool:
    """Whether an address can only mean this machine."""
    host = urlsplit(base_url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def project_id() -> str | None:
    return os.environ.get("TINKER_PROJECT_ID") or None


def tags() -> list[str]:
    """Tags of new sessions, from the comma list TINKER_TAGS, without duplicates."""
    values = (tag.strip() for tag in os.environ.get("TINKER_TAGS", "").split(","))
    return list(dict.fromkeys(tag for tag in values if tag))


def telemetry_enabled() -> bool:
    return os.environ.get("TINKER_TELEMETRY", "1").strip().lower() in _TRUE


def credential_command() -> str | None:
    return os.environ.get("TINKER_CREDENTIAL_CMD") or None


def access_headers() -> dict[str, str]:
    """Headers for servers behind Cloudflare Access."""
    headers = {}
    for name in ("CLIENT_ID", "CLIENT_SECRET"):
        value = os.environ.get(f"CLOUDFLARE_ACCESS_{name}")
        if value:
            headers[f"CF-Access-{name.replace('_', '-').title()}"] = value
    return headers


def configure_logging() -> None:
    """Apply TINKER_LOG (debug or info)."""
    level = {"debug": logging.DEBUG, "info": logging.INFO}.get(os.environ.get("TINKER_LOG", "").lower())
    if level is None:
        return
    logger.setLevel(level)
    if not logging.getLogger().handlers and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
