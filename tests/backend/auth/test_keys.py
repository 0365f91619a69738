"""API keys: how they are made, kept, checked and taken away."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from tinker_backend.auth import KeyFile, keys, open_authenticator, tokens
from tinker_backend.errors import ConfigError, Unauthorized, Unavailable


@pytest.fixture
def key_path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_key_opens_the_door_by_either_header_and_names_its_owner(key_path: Path) -> None:
    key, record = KeyFile(key_path).create("alice", note="laptop")
    door = open_authenticator(key_path)
    for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key}"}):
        caller = door.authenticate(headers)
        assert (caller.owner, caller.name, caller.note, caller.key_id) == (record.owner, "alice", "laptop", 1)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": ""},
        {"x-api-key": "tml-wrong"},
        {"authorization": "Basic dG1s"},
        {"authorization": "Bearer"},
        {"x-api-key": "tml-" + "é" * 40},
        {"x-api-key": "x" * 1_000_000},
        {"x-api-key": "eyJhbGciOiJub25lIn0.e30."},
    ],
    ids=["none", "empty", "wrong", "basic", "bearer without key", "not ASCII", "a megabyte", "unsigned token"],
)
def test_anything_else_is_refused_without_repeating_it(key_path: Path, headers: dict[str, str]) -> None:
    KeyFile(key_path).create("alice")
    with pytest.raises(Unauthorized) as refusal:
        open_authenticator(key_path).authenticate(headers)
    assert "www-authenticate" in refusal.value.headers
    assert all(value not in str(refusal.value) for value in headers.values() if len(value) > 6)


def test_the_file_holds_no_key_and_is_the_users_alone(key_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        key, record = KeyFile(key_path).create("alice")
        open_authenticator(key_path).authenticate({"x-api-key": key})
    assert key.startswith("tml-") and len(key) > 40
    assert key not in key_path.read_text() and key.removeprefix("tml-") not in key_path.read_text()
    assert stat.S_IMODE(key_path.stat().st_mode) == 0o600
    assert key not in caplog.text and record.digest not in repr(record)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_can_reach_is_refused_with_the_fix(key_path: Path, mode: int) -> None:
    KeyFile(key_path).create("alice")
    key_path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        open_authenticator(key_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9, "keys": []}', '{"format": 1, "keys": [{"id": 1}]}'])
def test_a_broken_file_is_refused_by_name(key_path: Path, text: str) -> None:
    key_path.write_text(text)
    key_path.chmod(0o600)
    with pytest.raises(ConfigError, match=str(key_path)):
        open_authenticator(key_path)


def test_a_missing_file_is_refused_with_the_command_that_makes_one(key_path: Path) -> None:
    with pytest.raises(ConfigError, match="tinker-backend keys create"):
        open_authenticator(key_path)


def test_new_and_revoked_keys_take_effect_while_the_door_is_open(key_path: Path) -> None:
    file = KeyFile(key_path)
    alice, _ = file.create("alice")
    door = open_authenticator(key_path)
    bob, _ = file.create("bob")
    assert door.authenticate({"x-api-key": bob}).owner != door.authenticate({"x-api-key": alice}).owner
    file.revoke("alice")
    with pytest.raises(Unauthorized):
        door.authenticate({"x-api-key": alice})
    assert door.authenticate({"x-api-key": bob}).name == "bob"


def test_a_file_that_becomes_unusable_closes_the_door(key_path: Path) -> None:
    key, _ = KeyFile(key_path).create("alice")
    door = open_authenticator(key_path)
    key_path.write_text("broken")
    os.utime(key_path, ns=(1, 1))
    with pytest.raises(Unavailable):
        door.authenticate({"x-api-key": key})


def test_a_key_can_be_replaced_by_one_of_the_same_owner(key_path: Path) -> None:
    file = KeyFile(key_path)
    _, old = file.create("alice")
    new_key, new = file.create("alice-2027", owner=old.owner)
    file.revoke(old.id)
    assert new.owner == old.owner and new.id != old.id
    assert open_authenticator(key_path).authenticate({"x-api-key": new_key}).owner == old.owner


def test_a_number_is_never_given_twice(key_path: Path) -> None:
    file = KeyFile(key_path)
    file.create("a")
    file.create("b")
    file.revoke("b")
    assert file.create("b")[1].id == 3


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "x" * 200])
def test_a_name_that_cannot_be_listed_is_refused(key_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        KeyFile(key_path).create(name)


def test_a_token_stands_for_its_key_until_the_key_is_revoked(key_path: Path) -> None:
    key, record = KeyFile(key_path).create("alice", email="alice@example.org", organization="lab")
    door = open_authenticator(key_path)
    token = door.issue_token(door.authenticate({"x-api-key": key}))
    assert door.authenticate({"x-api-key": token}) == door.authenticate({"x-api-key": key})
    door.revoke(door.authenticate({"x-api-key": token}))
    with pytest.raises(Unauthorized) as refusal:
        door.authenticate({"x-api-key": token})
    assert 'error="invalid_token"' in refusal.value.headers["www-authenticate"]


def test_a_token_of_another_server_or_time_is_refused_as_invalid_token(key_path: Path) -> None:
    key, _ = KeyFile(key_path).create("alice")
    caller = open_authenticator(key_path).authenticate({"x-api-key": key})
    foreign = open_authenticator(key_path).issue_token(caller)
    with pytest.raises(Unauthorized) as refusal:
        open_authenticator(key_path).authenticate({"x-api-key": foreign})
    assert 'error="invalid_token"' in refusal.value.headers["www-authenticate"]


def test_tokens_end_and_cannot_be_altered() -> None:
    secret = b"s" * 32
    token = tokens.issue(secret, {"key_id": 1}, now=1000.0)
    claims = tokens.verify(secret, token, now=1000.0 + tokens.LIFETIME_SECONDS - 1)
    assert claims["exp"] - claims["iat"] == tokens.LIFETIME_SECONDS
    with pytest.raises(tokens.BadToken):
        tokens.verify(secret, token, now=1000.0 + tokens.LIFETIME_SECONDS)
    header, payload, signature = token.split(".")
    other = tokens.issue(b"t" * 32, {"key_id": 2}, now=1000.0).split(".")
    for forged in (
        f"{header}.{other[1]}.{signature}",
        f"{header}.{payload}.",
        f"{other[1]}.{payload}.{signature}",
        "a.b",
    ):
        with pytest.raises(tokens.BadToken):
            tokens.verify(secret, forged, now=1000.0)


def test_the_command_makes_lists_and_revokes_keys(key_path: Path) -> None:
    runner = CliRunner()
    made = runner.invoke(keys, ["create", "--file", str(key_path), "--name", "alice"])
    assert made.exit_code == 0 and made.stdout.startswith("tml-")
    listed = runner.invoke(keys, ["list", "--file", str(key_path), "--json"])
    assert [record["name"] for record in json.loads(listed.stdout)] == ["alice"] and "digest" not in listed.stdout
    assert runner.invoke(keys, ["revoke", "--file", str(key_path), "alice"]).exit_code == 0
    again = runner.invoke(keys, ["revoke", "--file", str(key_path), "alice"])
    assert again.exit_code == 1 and "no key in use" in again.output
