"""runtime.yaml and engine.yaml are read strictly, and errors name file, key, value and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_backend.config import EngineConfig, RuntimeConfig, parse_devices
from tinker_backend.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_embedded_mode(tmp_path: Path) -> None:
    config = RuntimeConfig.load(write(tmp_path, ""))
    assert (config.backend.host, config.backend.port) == ("127.0.0.1", 19210)
    assert config.checkpoints.folder == tmp_path / "checkpoints"
    assert config.ledger_url == f"sqlite:///{tmp_path / 'ledger.db'}"
    beside = RuntimeConfig.load(write(tmp_path, "ledger: {url: 'sqlite:///state/tinker.db'}"))
    assert beside.ledger_url == f"sqlite:///{tmp_path / 'state/tinker.db'}"
    elsewhere = RuntimeConfig.load(write(tmp_path, "ledger: {url: 'sqlite:////var/lib/tinker.db'}"))
    assert elsewhere.ledger_url == "sqlite:////var/lib/tinker.db"
    engine = EngineConfig.load(write(tmp_path, "pretrain: some/model"))
    assert engine.actor_train.strategy_args.strategy_name == "torch" and engine.sequence_length == 4096


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bakend: {}", ["bakend", "did you mean 'backend'"]),
        ("backend: {prot: 1}", ["backend.prot", "did you mean 'port'"]),
        ("backend: {port: 70000}", ["backend.port", "70000"]),
        ("backend: {port: many}", ["backend.port", "many"]),
        ("- a list", ["mapping"]),
        ("backend: [", ["YAML"]),
        ("logs: {level: loud}", ["logs.level", "loud"]),
        (
            "ledger: {url: 'mysql://root@localhost/x'}",
            ["ledger.url", "mysql://", "postgresql+psycopg://", "sqlite:///"],
        ),
        ("ledger: {url: 'sqlite://'}", ["ledger.url", "memory"]),
        ("ledger: {url: /var/lib/ledger.db}", ["ledger.url", "/var/lib/ledger.db", "sqlite:///FILE"]),
    ],
)
def test_a_bad_server_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        RuntimeConfig.load(write(tmp_path, text))
    assert all(word in str(caught.value) for word in [*words, "file.yaml"]), str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sequence_length: 10", ["pretrain", "missing"]),
        ("pretrain: x\nactor_infer: {strategy_args: {strategy_nmae: vllm}}", ["strategy_nmae", "strategy_name"]),
        ("pretrain: x\nactor_infer: {strategy_args: {strategy_name: sglang}}", ["strategy_name", "sglang", "vllm"]),
        ("pretrain: x\nactor_train: {device_mapping: '0'}\nactor_infer: {device_mapping: [0]}", ["[0]", "share"]),
        ("pretrain: x\nactor_infer: {device_mapping: '0-2', num_gpus_per_worker: 2}", ["multiple"]),
        ("pretrain: x\nactor_infer: {device_mapping: '[0, 0]'}", ["distinct"]),
        (
            "pretrain: x\nactor_infer: {device_mapping: '__import__(\"os\").getpid()'}",
            ["device_mapping", "list(range(0,8))"],
        ),
    ],
)
def test_a_bad_engine_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.load(write(tmp_path, text))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("list(range(0,8))", list(range(8))),
        ("list(range(4))", [0, 1, 2, 3]),
        ("range(0, 8, 2)", [0, 2, 4, 6]),
        ("0-3,5", [0, 1, 2, 3, 5]),
        ("[1, 2]", [1, 2]),
        ("7", [7]),
        ("", []),
    ],
)
def test_device_mappings_are_parsed(text: str, devices: list[int]) -> None:
    assert parse_devices(text) == devices


@given(st.text(max_size=40))
def test_any_text_is_a_device_mapping_or_refused(text: str) -> None:
    try:
        assert all(isinstance(device, int) and device >= 0 for device in parse_devices(text))
    except ValueError as error:
        assert "device_mapping" in str(error)


@pytest.mark.parametrize(
    ("host", "open_to_others"),
    [
        ("127.0.0.1", False),
        ("localhost", False),
        ("::1", False),
        ("0.0.0.0", True),
        ("10.0.0.1", True),
        ("example.org", True),
    ],
)
def test_only_loopback_goes_without_keys(tmp_path: Path, host: str, open_to_others: bool) -> None:
    config = RuntimeConfig.load(write(tmp_path, f"backend: {{host: '{host}'}}"))
    if open_to_others:
        with pytest.raises(ConfigError, match="api_keys_file"):
            config.check_listen_address()
    else:
        config.check_listen_address()
