"""Who gets in."""

from __future__ import annotations

import httpx

from ..client import WireClient
from ..probe import Skipped, check, probe
from ..suite import Suite

_PATHS = ("get_server_capabilities", "training_runs", "sessions", "checkpoints")


def _anonymous(suite: Suite, api_key: str | None) -> list[httpx.Response]:
    client = WireClient(suite.base_url, api_key, suite.deadline)
    try:
        return [
            *(client.request("GET", path) for path in _PATHS),
            client.request("POST", "create_session", json={"tags": [], "user_metadata": {}, "sdk_version": "0.38.0"}),
        ]
    finally:
        client.close()


def _check_closed(suite: Suite, api_key: str | None, who: str) -> str:
    answers = _anonymous(suite, api_key)
    if all(answer.status_code < 300 for answer in answers):
        raise Skipped(f"the server runs without keys: it serves {who}")
    for answer in answers:
        check(answer.status_code in (401, 403), f"{answer.request.url.path} serves {who}: HTTP {answer.status_code}")
    return f"HTTP {answers[0].status_code}"


@probe("Without a key nothing is served")
def no_key_is_refused(suite: Suite) -> str:
    return _check_closed(suite, None, "a client without a key")


@probe("With a wrong key nothing is served, and the answer does not repeat the key")
def a_wrong_key_is_refused(suite: Suite) -> str:
    wrong = "tml-" + "0" * 40
    detail = _check_closed(suite, wrong, "a client with a wrong key")
    check(all(wrong not in answer.text for answer in _anonymous(suite, wrong)), "the answer repeats the key")
    return detail
