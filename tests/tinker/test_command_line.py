"""The command ``tinker``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tinker
from tinker._download import download_checkpoint, safe_relative_path

PATH = "tinker://run:train:0/weights/c1"
EXTERNAL = "tinker://run:train:0/external_weights/e"


@pytest.fixture
def run(server: Any, tmp_path: Path) -> Any:
    def call(*arguments: str, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {
            **os.environ,
            "TINKER_BASE_URL": server.url,
            "TINKER_API_KEY": "tml-test",
            "COLUMNS": "200",
            **environment,
        }
        command = [sys.executable, "-c", "from tinker.cli import main; main()", *arguments]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, input=stdin)

    return call


def test_version_is_the_api_level(run: Any) -> None:
    assert run("version").stdout == "tinker 0.38.0\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "model list",
            {
                "models": [
                    {
                        "model_name": "Qwen/Qwen3-8B",
                        "max_context_length": 32768,
                        "trainable": True,
                        "sampleable": True,
                    }
                ]
            },
        ),
        ("model list zzz", {"models": []}),
        ("session export-trace s1 --url-only", {"session_id": "s1"}),
        ("billing usage 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z", {"data": [], "sessions": {}}),
        ("billing checkpoint-storage", {"data": []}),
        (f"checkpoint delete -y {PATH}", {"deleted_count": 1, "failed": []}),
        (f"checkpoint info {PATH}", {"checkpoint_id": "weights/c1", "is_lora": True, "lora_rank": 8}),
        ("run info run:train:0", {"training_run_id": "run:train:0", "last_request_time": "2026-01-01 00:00:00+00:00"}),
        ("checkpoint list --run-id run:train:0", {"run_id": "run:train:0"}),
    ],
)
def test_json_output(run: Any, arguments: str, expected: dict[str, Any]) -> None:
    done = run("-f", "json", *arguments.split())
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {key: printed[key] for key in expected} == expected


def test_lists_in_json(run: Any) -> None:
    runs = run("-f", "json", "run", "list")
    assert runs.stdout.startswith('{\n  "runs": [\n    {\n      "training_run_id": "run:train:0",\n')
    assert json.loads(runs.stdout)["runs"][0]["last_checkpoint"]["time"] == "2026-01-01 00:00:00+00:00"
    checkpoints = json.loads(run("-f", "json", "checkpoint", "list").stdout)
    assert checkpoints["checkpoints"][0]["tinker_path"] == PATH and "run_id" not in checkpoints


def test_tables(run: Any) -> None:
    models = run("model", "list").stdout
    assert all(word in models for word in ("Max Context", "Qwen/Qwen3-8B", "32768", "Yes"))
    runs = run("run", "list", "-c", "id,lora,checkpoint").stdout
    assert all(word in runs for word in ("1 training run", "run:train:0", "Rank 8", "weights/c1"))
    assert "Base Model" not in runs
    assert "Yes (Rank 8)" in run("run", "info", "run:train:0").stdout
    checkpoints = run("checkpoint", "list").stdout
    assert all(word in checkpoints for word in ("training", "12 B", "No", "2026-01-01", "Never", PATH))


def test_a_terminal_too_narrow_for_a_table_gets_lines_with_whole_paths(run: Any) -> None:
    lines = run("checkpoint", "list", COLUMNS="60").stdout.splitlines()
    assert lines[0] == "1 checkpoint"
    (path,) = [line for line in lines if line.startswith("Path ")]
    assert path.split() == ["Path", PATH]


@pytest.mark.parametrize(
    ("arguments", "sent", "body"),
    [
        (f"checkpoint publish {PATH}", "POST training_runs/run:train:0/checkpoints/weights/c1/publish", None),
        (f"checkpoint unpublish {PATH}", "DELETE training_runs/run:train:0/checkpoints/weights/c1/publish", None),
        (
            f"checkpoint set-ttl {PATH} --ttl 5",
            "PUT training_runs/run:train:0/checkpoints/weights/c1/ttl",
            {"ttl_seconds": 5},
        ),
        (
            f"checkpoint set-ttl {PATH} --remove",
            "PUT training_runs/run:train:0/checkpoints/weights/c1/ttl",
            {"ttl_seconds": None},
        ),
    ],
)
def test_changes_print_nothing(run: Any, server: Any, arguments: str, sent: str, body: Any) -> None:
    done = run(*arguments.split())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    request = server.requests[-1]
    assert f"{request.method} {request.path}" == sent and request.json == body


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("checkpoint info nonsense", "Invalid checkpoint path: nonsense"),
        (f"checkpoint set-ttl {PATH}", "--ttl SECONDS and --remove"),
        ("checkpoint delete -y", "--run-id"),
        (f"checkpoint delete -y {PATH} --type weights", "go with --run-id"),
        ("run list -c bad", "Unknown column(s): bad"),
        ("auth whoami", "Error: whoami needs a token that names its user; this server works with plain API keys"),
        ("auth logout", "This machine keeps no default key"),
        ("checkpoint info tinker://run:train:0/weights/missing", "Checkpoint not found"),
    ],
)
def test_errors_go_to_stderr_with_code_1(run: Any, arguments: str, message: str) -> None:
    done = run(*arguments.split())
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Error: ") and message in done.stderr


def test_a_server_without_tls_is_told_at_once(run: Any, server: Any) -> None:
    done = run("run", "list", TINKER_BASE_URL=server.url.replace("http://", "https://"))
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr and "(is it http://?)" in done.stderr


def test_a_server_that_is_not_there_is_told_at_once(run: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        done = run("run", "list", TINKER_BASE_URL=url)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == f"Error: The server {url} cannot be reached"
    assert "Connection refused" in done.stderr and "tinker-backend serve" in done.stderr


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TINKER_BASE_URL": "127.0.0.1:19210"}, "TINKER_BASE_URL '127.0.0.1:19210' is no address of a server"),
        ({"TINKER_BASE_URL": "http://localhost:port"}, "is no address of a server"),
        ({"TINKER_BASE_URL": "", "TINKER_API_KEY": ""}, "a server of your own is named by base_url or TINKER_BASE_URL"),
    ],
)
def test_settings_that_lead_nowhere_are_told_in_one_sentence(
    run: Any, environment: dict[str, str], message: str
) -> None:
    done = run("model", "list", **environment)
    assert done.returncode == 1 and message in done.stderr
    assert done.stderr.startswith("Error: ") and "Unexpected" not in done.stderr


def test_a_server_that_refuses_the_key(run: Any, server: Any, mock: Any) -> None:
    server.always("client/config", mock.Answer(401, json={"detail": "bad key"}))
    done = run("run", "list")
    assert done.returncode == 1 and "tinker auth login" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_pages_are_listed(run: Any, server: Any, mock: Any) -> None:
    base = server._default_rest(type("R", (), {"path": "training_runs", "method": "GET"})).json["training_runs"][0]

    def page(call: Any) -> Any:
        query = dict(part.split("=") for part in call.query.split("&"))
        offset, limit = int(query["offset"]), int(query["limit"])
        runs = [{**base, "training_run_id": f"r{n}"} for n in range(offset, min(offset + limit, 250))]
        return mock.Answer(
            json={"training_runs": runs, "cursor": {"offset": offset, "limit": limit, "total_count": 250}}
        )

    server.always("training_runs", page)
    assert len(json.loads(run("-f", "json", "run", "list", "--limit", "0").stdout)["runs"]) == 250
    assert len(json.loads(run("-f", "json", "run", "list", "--limit", "130").stdout)["runs"]) == 130


def test_deleting_by_filter_asks_first(run: Any, server: Any, mock: Any) -> None:
    def checkpoint(name: str, kind: str, time: str) -> dict[str, Any]:
        segment = {"training": "weights", "sampler": "sampler_weights"}[kind]
        return {
            "checkpoint_id": f"{segment}/{name}",
            "checkpoint_type": kind,
            "time": time,
            "tinker_path": f"tinker://r/{segment}/{name}",
        }

    listed = [
        checkpoint("old", "training", "2026-01-01T00:00:00Z"),
        checkpoint("new", "training", "2026-06-01T00:00:00Z"),
        checkpoint("other", "sampler", "2026-01-01T00:00:00Z"),
    ]
    server.always("training_runs/r/checkpoints", mock.Answer(json={"checkpoints": listed}))
    filters = ("--run-id", "r", "--type", "weights", "--before", "2026-03-01")
    refused = run("checkpoint", "delete", *filters, stdin="n\n")
    assert refused.returncode == 130 and server.calls(".*/weights/old") == []
    assert "tinker://r/weights/old" in refused.stderr and "new" not in refused.stderr
    done = run("checkpoint", "delete", *filters, stdin="y\n")
    assert done.returncode == 0 and "Deleted 1 checkpoint(s)" in done.stdout
    assert [call.path for call in server.requests if call.method == "DELETE"] == [
        "training_runs/r/checkpoints/weights/old"
    ]


def test_failed_deletions_are_listed(run: Any, server: Any, mock: Any) -> None:
    server.always(
        "training_runs/.*", lambda call: mock.Answer(404 if "bad" in call.path else 200, json={"detail": "gone"})
    )
    done = run("-f", "json", "checkpoint", "delete", "-y", PATH, "tinker://r/weights/bad")
    printed = json.loads(done.stdout)
    assert done.returncode == 1 and printed["deleted_count"] == 1
    assert printed["failed"][0]["tinker_path"] == "tinker://r/weights/bad"


# -- logging in ----------------------------------------------------------------------------------------------------
def test_login_keeps_a_key_that_the_server_knows(run: Any, server: Any, mock: Any, tmp_path: Path) -> None:
    details = {"org_details": {"name": "o"}, "user_details": {"email": "a@b.c"}}
    server.script("auth/apikey/me", mock.Answer(json={"key_id": 7, "name": "laptop", "note": "n", "details": details}))
    done = run("auth", "login", stdin="tml-secret\n", TINKER_API_KEY="")
    assert done.returncode == 0 and "tml-secret" not in done.stdout + done.stderr
    path = tmp_path / ".tinker" / "credentials.json"
    stored = json.loads(path.read_text())
    assert stored["default"] == "7" and stored["keys"]["7"]["key"] == "tml-secret"
    assert server.calls("auth/apikey/me")[0].headers["x-api-key"] == "tml-secret"
    assert run("auth", "status", TINKER_API_KEY="").stdout == "Credentials available: yes\nTinker accessible: yes\n"
    assert server.requests[-1].headers["x-api-key"] == "tml-secret"
    assert run("auth", "logout").returncode == 0
    assert json.loads(path.read_text())["keys"] == {}


def test_login_refuses_keys_that_the_server_refuses(run: Any, server: Any, mock: Any, tmp_path: Path) -> None:
    server.always("auth/apikey/me", mock.Answer(401, json={}))
    assert run("auth", "login", stdin="tml-wrong\n").returncode == 1
    assert run("auth", "login", stdin="other\n").returncode == 1
    assert not (tmp_path / ".tinker").exists()


# -- downloads -----------------------------------------------------------------------------------------------------
def serve_files(server: Any, mock: Any, files: dict[str, bytes]) -> None:
    urls = {name: f"{server.url}/api/v1/files/{index}" for index, name in enumerate(files)}
    server.always(".*/external_weights_urls", mock.Answer(json={"urls": urls, "expires": mock.NOW}))
    for index, content in enumerate(files.values()):
        server.always(f"files/{index}", mock.Answer(body=content, headers={"content-type": "application/octet-stream"}))


def test_an_external_checkpoint_is_downloaded(run: Any, server: Any, mock: Any, tmp_path: Path) -> None:
    serve_files(server, mock, {"adapter_config.json": b"{}", "sub/adapter_model.safetensors": b"x" * 3_000_000})
    done = run("-f", "json", "checkpoint", "download", EXTERNAL, "-o", "out")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "out" / "run:train:0_external_weights_e"
    assert json.loads(done.stdout) == {
        "checkpoint_path": EXTERNAL,
        "destination": f"out/{folder.name}",
        "file_size_bytes": 3_000_002,
    }
    assert (folder / "sub" / "adapter_model.safetensors").read_bytes() == b"x" * 3_000_000
    assert server.calls("files/0")[0].headers["x-api-key"] == "tml-test"
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [folder.name]  # nothing temporary stays
    again = run("checkpoint", "download", EXTERNAL, "-o", "out")
    assert again.returncode == 1 and "--force" in again.stderr
    serve_files(server, mock, {"adapter_config.json": b"new"})
    assert run("checkpoint", "download", EXTERNAL, "-o", "out", "--force").returncode == 0
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {"adapter_config.json": b"new"}


def test_a_training_checkpoint_is_made_external_for_the_time_of_the_download(
    run: Any, server: Any, mock: Any, tmp_path: Path
) -> None:
    serve_files(server, mock, {"adapter_config.json": b"{}"})
    done = run("checkpoint", "download", PATH)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run:train:0_weights_c1" / "adapter_config.json").read_bytes() == b"{}"
    (load,) = server.calls("load_weights")
    (save,) = server.calls("save_weights_external")
    assert (load.json["path"], load.json["optimizer"]) == (PATH, False)
    assert (save.json["path"], save.json["ttl_seconds"]) == ("download", 3600)
    deleted = [call.path for call in server.requests if call.method == "DELETE"]
    assert deleted == ["training_runs/sess-abc:train:0/checkpoints/external_weights/download"]
    assert len(server.calls("sessions/sess-abc/finish")) == 1


def test_a_sampler_checkpoint_is_downloaded_without_a_session(run: Any, server: Any, mock: Any, tmp_path: Path) -> None:
    serve_files(server, mock, {"adapter_config.json": b"{}"})
    path = "tinker://run:train:0/sampler_weights/s1"
    assert run("checkpoint", "download", path).returncode == 0
    assert (tmp_path / "run:train:0_sampler_weights_s1" / "adapter_config.json").read_bytes() == b"{}"
    assert not server.calls("load_weights") and not server.calls("create_session")


def test_a_server_that_gives_no_sampler_files_is_asked_for_an_external_checkpoint(
    server: Any, mock: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    path = "tinker://run:train:0/sampler_weights/s1"
    serve_files(server, mock, {"adapter_config.json": b"{}"})
    server.script(".*/sampler_weights/s1/external_weights_urls", mock.Answer(400, json={"detail": "external only"}))
    download_checkpoint(path, tmp_path / "out")
    assert [call.json["path"] for call in server.calls("load_weights")] == [path]


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "", ".", "C:/evil", "a\0b", ".."]
)
def test_no_file_leaves_the_folder(server: Any, mock: Any, tmp_path: Path, monkeypatch: Any, name: str) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    with pytest.raises(tinker.TinkerError):
        safe_relative_path(name)
    serve_files(server, mock, {"good": b"1", name: b"2"})
    target = tmp_path / "deep" / "target"
    with pytest.raises(tinker.TinkerError):
        download_checkpoint(EXTERNAL, target)
    assert not target.exists() and server.calls("files/.*") == []
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("kind", ["refused", "cut"])
def test_a_download_that_breaks_off_leaves_nothing(
    server: Any, mock: Any, tmp_path: Path, monkeypatch: Any, kind: str
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    serve_files(server, mock, {"good": b"1", "bad": b"2"})
    server.always("files/1", mock.Answer(403) if kind == "refused" else mock.Answer(drop=True))
    with pytest.raises(tinker.TinkerError, match="bad"):
        download_checkpoint(EXTERNAL, tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_the_key_goes_to_the_server_alone(server: Any, mock: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    other = mock.MockTinker()
    other.start()
    try:
        other.always("files/x", mock.Answer(body=b"1"))
        urls = {"f": f"{other.url}/api/v1/files/x"}
        server.always(".*/external_weights_urls", mock.Answer(json={"urls": urls, "expires": mock.NOW}))
        download_checkpoint(EXTERNAL, tmp_path / "target")
        assert "x-api-key" not in other.calls("files/x")[0].headers
    finally:
        other.stop()


def test_addresses_that_are_not_http_are_refused(server: Any, mock: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    urls = {"f": "file:///etc/passwd"}
    server.always(".*/external_weights_urls", mock.Answer(json={"urls": urls, "expires": mock.NOW}))
    with pytest.raises(tinker.TinkerError, match="not http"):
        download_checkpoint(EXTERNAL, tmp_path / "target")


def test_usage_as_csv(run: Any, server: Any, mock: Any, tmp_path: Path) -> None:
    event = {
        "bucket_start": mock.NOW,
        "bucket_end": mock.NOW,
        "session_id": "s",
        "event_info": {"type": "training", "token_count": 12},
    }
    answer = {"data": [event], "sessions": {"s": {"user_metadata": {"k": "v"}}}}
    server.always("billing/usage/events", mock.Answer(json=answer))
    period = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    assert run("billing", "usage", *period, "--csv", "u.csv", "--sessions-csv", "s.csv").returncode == 0
    header, row = (tmp_path / "u.csv").read_text().splitlines()
    assert header.endswith("event_type,token_count") and row.endswith("training,12")
    assert (tmp_path / "s.csv").read_text().splitlines() == ["session_id,k", "s,v"]
    assert "12 tokens" in run("billing", "usage", *period).stdout


def test_a_trace_is_written_to_a_file(run: Any, server: Any, mock: Any, tmp_path: Path) -> None:
    server.always("sessions/s1/trace_export", mock.Answer(json={"status": "ready", "url": f"{server.url}/api/v1/t"}))
    server.always("t", mock.Answer(body=b"trace!"))
    done = run("-f", "json", "session", "export-trace", "s1", "-o", "trace.bin")
    assert json.loads(done.stdout) == {"session_id": "s1", "destination": "trace.bin", "file_size_bytes": 6}
    assert (tmp_path / "trace.bin").read_bytes() == b"trace!"
