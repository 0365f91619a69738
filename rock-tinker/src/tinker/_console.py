"""Web addresses of the hosted console."""

from __future__ import annotations

from urllib.parse import quote

CONSOLE_URL = "https://tinker.thinkingmachines.ai"


def session_url(session_id: str) -> str:
    return f"{CONSOLE_URL}/sessions/{quote(session_id, safe='')}"


def training_run_url(training_run_id: str) -> str:
    return f"{CONSOLE_URL}/training_runs/{quote(training_run_id, safe='')}"


def checkpoint_url(tinker_path: str) -> str:
    run_id, _, checkpoint_id = tinker_path.removeprefix("tinker://").partition("/")
    return f"{CONSOLE_URL}/checkpoints/{quote(run_id, safe='')}/{quote(checkpoint_id, safe='')}"


def playground_url(tinker_path: str) -> str:
    return f"{CONSOLE_URL}/playground?mode=checkpoint&checkpoint={quote(tinker_path, safe='')}"
