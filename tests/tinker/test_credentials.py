"""Keys, commands, tokens."""

from __future__ import annotations

import base64
import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

import tinker
from tinker import _credentials, auth


def jwt(seconds: float = 3600, age: float = 0, **claims: Any) -> str:
    now = time.time()
    payload = {"iat": now - age, "exp": now - age + seconds, "sub": "user-1", "org_id": "org-1", "email": "a@b.c"}
    parts = ({"alg": "none"}, {**payload, **claims})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "sig"])


def use(server: Any, key: str | None = "tml-test") -> tinker.RestClient:
    client = tinker.RestClient(tinker._holder.Holder(server.url, key))
    client.get_sampler("s").result(10)
    return client


@pytest.mark.parametrize("key", ["sk-123", "abc", "TML-x"])
def test_keys_of_another_form_are_refused_before_any_call(server: Any, key: str) -> None:
    with pytest.raises(tinker.TinkerError, match="tml-"):
        tinker.ServiceClient(base_url=server.url, api_key=key)
    assert server.requests == []


def test_a_remote_server_needs_a_key() -> None:
    with pytest.raises(tinker.TinkerError, match="TINKER_API_KEY"):
        tinker.ServiceClient(base_url="https://tinker.example")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.9.9.9", "[::1]"])
def test_a_loopback_server_needs_none(host: str) -> None:
    service = tinker.ServiceClient(base_url=f"http://{host}:1")
    assert service.holder._raw_credential.key == "tml-local"  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example"])
def test_other_hosts_are_not_taken_for_loopback(host: str) -> None:
    with pytest.raises(tinker.TinkerError):
        tinker.ServiceClient(base_url=f"http://{host}:1")


def test_the_order_of_credentials(server: Any, monkeypatch: Any, tmp_path: Path) -> None:
    def sent() -> str:
        return str(server.calls("client/config")[-1].headers["x-api-key"])

    key = _credentials.StoredKey(type="manual", key="tml-file", name="n")
    _credentials.write_credentials(_credentials.CredentialsFile(default="1", keys={"1": key}))
    use(server, None)
    assert sent() == "tml-file"
    monkeypatch.setenv("TINKER_API_KEY", "tml-env")
    use(server, None)
    assert sent() == "tml-env"
    use(server, "tml-argument")
    assert sent() == "tml-argument"


def test_the_credentials_file_is_private(tmp_path: Path) -> None:
    key = _credentials.StoredKey(type="generated", key="tml-x", name="n", note="hello")
    _credentials.write_credentials(_credentials.CredentialsFile(default="7", keys={"7": key}))
    path = tmp_path / ".tinker" / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_text()) == {
        "version": 1,
        "default": "7",
        "keys": {"7": {"type": "generated", "key": "tml-x", "name": "n", "note": "hello"}},
    }
    assert _credentials.default_key() == "tml-x"
    path.write_text("{broken")
    with pytest.raises(tinker.TinkerError, match=r"credentials\.json"):
        _credentials.read_credentials()


def test_the_server_address(monkeypatch: Any) -> None:
    from tinker._settings import resolve_base_url

    assert resolve_base_url() == "https://tinker.thinkingmachines.dev/services/tinker-prod"
    monkeypatch.setenv("TINKER_BASE_URL", "http://a/b//")
    assert resolve_base_url() == "http://a/b"
    assert resolve_base_url("http://c/") == "http://c"
    monkeypatch.setenv("TINKER_BASE_URL", "")
    assert resolve_base_url().startswith("https://tinker.")


# -- tokens ------------------------------------------------------------------------------------------------------
def test_the_key_is_exchanged_for_a_token(server: Any, mock: Any) -> None:
    server.flags = {"pjwt_auth_enabled": True}
    token = jwt()
    server.always("auth/token", mock.Answer(json={"jwt": token}))
    client = use(server)
    who = client.whoami().result(10)
    assert (who.user_urn, who.org_urn, who.email) == ("user-1", "tml:organization:org-1", "a@b.c")
    keys = {call.path: call.headers["x-api-key"] for call in server.requests}
    assert keys["client/config"] == keys["auth/token"] == "tml-test"
    assert keys["client/dynamic_config"] == keys["samplers/s"] == token
    assert server.calls("auth/token")[0].body == b"{}"


def test_a_token_that_ends_soon_is_renewed_before_the_next_call(server: Any, mock: Any) -> None:
    server.flags = {"pjwt_auth_enabled": True}
    old, new = jwt(50), jwt(3600, n=2)
    server.script("auth/token", mock.Answer(json={"jwt": old}))
    server.always("auth/token", mock.Answer(json={"jwt": new}))
    use(server)
    assert server.calls("samplers/s")[0].headers["x-api-key"] == new


def test_an_unreadable_token_is_exchanged_before_every_call(server: Any, mock: Any) -> None:
    server.flags = {"pjwt_auth_enabled": True}
    server.always("auth/token", mock.Answer(json={"jwt": "eyJ.opaque"}))
    client = use(server)
    before = len(server.calls("auth/token"))
    client.get_sampler("s").result(10)
    assert len(server.calls("auth/token")) == before + 1


def test_an_old_token_is_kept_while_the_exchange_is_down(server: Any, mock: Any, waits: Any) -> None:
    server.flags = {"pjwt_auth_enabled": True}
    old = jwt(50)
    server.script("auth/token", mock.Answer(json={"jwt": old}))
    server.always("auth/token", mock.Answer(500))
    use(server)
    assert server.calls("samplers/s")[0].headers["x-api-key"] == old


def test_a_refused_exchange_is_raised_at_once(server: Any, mock: Any) -> None:
    server.flags = {"pjwt_auth_enabled": True}
    server.always("auth/token", mock.Answer(401, json={"detail": "no"}))
    with pytest.raises(tinker.AuthenticationError):
        use(server)
    assert len(server.calls("auth/token")) == 1


def test_an_invalid_token_is_replaced_and_the_call_replayed_once(server: Any, mock: Any) -> None:
    server.flags = {"pjwt_auth_enabled": True}
    first, second = jwt(n=1), jwt(n=2)
    server.script("auth/token", mock.Answer(json={"jwt": first}), mock.Answer(json={"jwt": second}))
    challenge = {"www-authenticate": 'Bearer error="invalid_token"'}
    server.script("training_runs/.*/publish", mock.Answer(401, json={}, headers=challenge))
    client = use(server)
    client.publish_checkpoint_from_tinker_path("tinker://r/weights/c").result(10)
    one, two = server.calls(".*/publish")
    assert (one.headers["x-api-key"], two.headers["x-api-key"]) == (first, second)
    assert one.headers["x-idempotency-key"] == two.headers["x-idempotency-key"]
    server.always("samplers/s", mock.Answer(401, json={}, headers=challenge))
    server.always("auth/token", mock.Answer(json={"jwt": jwt(n=3)}))
    with pytest.raises(tinker.AuthenticationError):
        client.get_sampler("s").result(10)


def test_a_plain_401_is_final(server: Any, mock: Any) -> None:
    client = use(server)
    server.script("samplers/s", mock.Answer(401, json={"detail": "no"}))
    with pytest.raises(tinker.AuthenticationError):
        client.get_sampler("s").result(10)


def test_tokens_are_refreshed_at_about_half_their_life() -> None:
    from tinker._auth import ExchangedToken

    async def never() -> str:
        raise AssertionError

    import asyncio

    async def seconds() -> float:
        exchanged = ExchangedToken(never)
        exchanged._token = jwt(1000)
        return exchanged._seconds_to_refresh()

    assert all(445 <= asyncio.run(seconds()) <= 555 for _ in range(20))


def test_whoami_reads_an_own_token_or_gives_up(server: Any) -> None:
    own = jwt(iss="passport-x")
    assert use(server, own).whoami().result(10).user_urn == "user-1"
    for key in (jwt(iss="other"), "tml-test"):
        with pytest.raises(RuntimeError):
            use(server, key).whoami().result(10)


# -- commands ----------------------------------------------------------------------------------------------------
def test_a_command_gives_the_credential(server: Any, mock: Any, monkeypatch: Any) -> None:
    server.flags = {"pjwt_auth_enabled": True}
    token = jwt()
    server.always("auth/token", mock.Answer(json={"jwt": token}))
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "echo tml-from-command")
    use(server, None)
    assert server.calls("auth/token")[0].headers["x-api-key"] == "tml-from-command"
    assert auth.get_tinker_token() == "tml-from-command"


def test_a_command_needs_a_server_that_exchanges(server: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "echo tml-from-command")
    with pytest.raises(tinker.TinkerError, match="TINKER_CREDENTIAL_CMD"):
        use(server, None)


def test_a_server_can_insist_on_the_command(server: Any, mock: Any, monkeypatch: Any) -> None:
    server.flags = {"pjwt_auth_enabled": True, "credential_default_source": "credential_cmd"}
    server.always("auth/token", mock.Answer(json={"jwt": jwt()}))
    with pytest.raises(tinker.TinkerError, match="TINKER_CREDENTIAL_CMD"):
        use(server)
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "echo tml-from-command")
    use(server)
    assert server.calls("auth/token")[-1].headers["x-api-key"] == "tml-from-command"


@pytest.mark.parametrize("command", ["exit 3", "true", "echo oops >&2; exit 1"])
def test_a_command_that_fails_says_so(server: Any, monkeypatch: Any, command: str) -> None:
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", command)
    with pytest.raises(tinker.TinkerError, match="TINKER_CREDENTIAL_CMD ended"):
        use(server, None)


# -- the auth module ---------------------------------------------------------------------------------------------
def test_the_auth_module_tells_what_works(server: Any, mock: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "https://tinker.example")
    assert auth.get_tinker_token() is None and not auth.tinker_has_credentials()
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-env")
    assert auth.get_tinker_token() == "tml-env"
    auth.raise_if_tinker_not_accessible()
    server.always("get_server_capabilities", mock.Answer(503))
    before = len(server.requests)
    with pytest.raises(tinker.InternalServerError):
        auth.raise_if_tinker_not_accessible()
    assert len([r for r in server.requests[before:] if r.path == "get_server_capabilities"]) == 1
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(tinker.APIConnectionError):
        auth.raise_if_tinker_not_accessible()
    assert time.monotonic() - started < 5
