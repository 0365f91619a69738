"""Interfaces that clients may ask for and that this service does not have, with what to use instead."""

from __future__ import annotations

_PREFIX = "/apis/envs/sandbox/v1"
# Beginnings of paths, the first that fits counts.
_ABSENT = (
    ("/apis/v1/envs/gem", "GEM environments are not served; run the environment in a sandbox (/start, /execute)"),
    ("/sandboxes", f"the E2B interface is not served; use {_PREFIX}/start and the routes beside it"),
    (f"{_PREFIX}/ops/", "ops tasks (maintenance of hosts) are not served; workers clear up by themselves"),
    (f"{_PREFIX}/warmup/", "warmup tasks are not served; start a sandbox of the image once"),
    (f"{_PREFIX}/host/proxy", "host proxy: host rocklets are not open to clients; use the routes of a sandbox"),
    (f"{_PREFIX}/get_nacos_config", "get_nacos_config: this service has no Nacos; its configuration is admin.yaml"),
)


def absent(method: str, path: str) -> str:
    """Why a request has no route."""
    for beginning, reason in _ABSENT:
        if path.startswith(beginning):
            return reason
    return f"there is no route {method} {path}; those of this service begin with {_PREFIX} (list: /openapi.json)"
