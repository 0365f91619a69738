"""Each REST call: method, path, query, body."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

import tinker
from tinker import types

PATH = "tinker://s:train:0/weights/c"
CHECKPOINT = "training_runs/s:train:0/checkpoints/weights/c"


@pytest.mark.parametrize(
    ("call", "sent", "body"),
    [
        (lambda c: c.get_server_capabilities(), "GET get_server_capabilities", None),
        (lambda c: c.get_training_run("s:train:0"), "GET training_runs/s:train:0?access_scope=owned", None),
        (
            lambda c: c.get_training_run_by_tinker_path(PATH, "accessible"),
            "GET training_runs/s:train:0?access_scope=accessible",
            None,
        ),
        (lambda c: c.list_training_runs(), "GET training_runs?limit=20&offset=0&access_scope=owned", None),
        (
            lambda c: c.list_training_runs(5, 10, "accessible", "p"),
            "GET training_runs?limit=5&offset=10&access_scope=accessible&project_id=p",
            None,
        ),
        (lambda c: c.get_weights_info_by_tinker_path(PATH), "POST weights_info", {"tinker_path": PATH}),
        (lambda c: c.list_checkpoints("s:train:0"), "GET training_runs/s:train:0/checkpoints", None),
        (lambda c: c.list_user_checkpoints(), "GET checkpoints?limit=100&offset=0", None),
        (
            lambda c: c.get_external_weights_urls("tinker://r/external_weights/e"),
            "GET training_runs/r/checkpoints/external_weights/e/external_weights_urls",
            None,
        ),
        (lambda c: c.delete_checkpoint("s:train:0", "weights/c"), f"DELETE {CHECKPOINT}", None),
        (lambda c: c.delete_checkpoint_from_tinker_path(PATH), f"DELETE {CHECKPOINT}", None),
        (lambda c: c.publish_checkpoint_from_tinker_path(PATH), f"POST {CHECKPOINT}/publish", None),
        (lambda c: c.unpublish_checkpoint_from_tinker_path(PATH), f"DELETE {CHECKPOINT}/publish", None),
        (
            lambda c: c.set_checkpoint_ttl_from_tinker_path(PATH, 3600),
            f"PUT {CHECKPOINT}/ttl",
            {"ttl_seconds": 3600},
        ),
        (
            lambda c: c.set_checkpoint_ttl_from_tinker_path(PATH, None),
            f"PUT {CHECKPOINT}/ttl",
            {"ttl_seconds": None},
        ),
        (
            lambda c: c.copy_weights(PATH, "p", ttl_seconds=9, weights_access_token="tok"),
            "POST copy_weights",
            {"destination_project_id": "p", "source_path": PATH, "ttl_seconds": 9},
        ),
        (lambda c: c.get_session("s"), "GET sessions/s?access_scope=owned", None),
        (lambda c: c.list_sessions(), "GET sessions?limit=20&offset=0&access_scope=owned", None),
        (
            lambda c: c.search_sessions(types.SessionSearchRequest(display_name="x")),
            "POST sessions/search",
            {"user_metadata": {}, "display_name": "x", "owner": {"type": "own"}, "limit": 50},
        ),
        (lambda c: c.assign_session_project("s", "p"), "PUT sessions/s/project", {"project_id": "p"}),
        (lambda c: c.export_session_trace("s"), "GET sessions/s/trace_export", None),
        (lambda c: c.get_sampler("x:sample:0"), "GET samplers/x:sample:0", None),
    ],
)
@pytest.mark.filterwarnings("ignore::tinker.ExperimentalWarning")
def test_rest_calls(server: Any, call: Any, sent: str, body: Any) -> None:
    client = tinker.RestClient(base_url=server.url)
    call(client).result(10)
    request = server.requests[-1]
    assert f"{request.method} {request.path}" + (f"?{request.query}" if request.query else "") == sent
    assert request.json == body
    if request.method != "GET":
        assert request.headers["content-type"] == "application/json"  # also without a body
        if body is None:
            assert request.headers.get("content-length", "0") == "0"
    else:
        assert "content-type" not in request.headers and "x-idempotency-key" not in request.headers


@pytest.mark.parametrize(
    ("call", "sent"),
    [
        (lambda c: c.get_audit_log(), "audit?event_type=all"),
        (lambda c: c.get_audit_log("projects", date(2026, 1, 2)), "audit?event_type=projects&day=2026-01-02"),
        (
            lambda c: c.get_billing_usage("2026-01-01T00:00:00Z", datetime(2026, 1, 2, tzinfo=UTC)),
            "billing/usage/events?starting_on=2026-01-01T00%3A00%3A00Z&ending_before=2026-01-02T00%3A00%3A00Z",
        ),
        (lambda c: c.get_current_checkpoint_storage_usage(), "billing/usage/checkpoints/current?"),
        (lambda c: c.get_current_checkpoint_storage_usage("p"), "billing/usage/checkpoints/current?project_id=p"),
    ],
)
def test_admin_calls_and_their_old_home(server: Any, call: Any, sent: str) -> None:
    call(tinker.AdminClient(base_url=server.url)).result(10)
    request = server.requests[-1]
    assert f"{request.path}?{request.query}" == sent
    with pytest.warns(FutureWarning, match="AdminClient"):
        call(tinker.RestClient(base_url=server.url)).result(10)
    assert f"{server.requests[-1].path}?{server.requests[-1].query}" == sent


def test_the_access_token_goes_in_a_header(server: Any) -> None:
    client = tinker.RestClient(base_url=server.url)
    assert client.copy_weights(PATH, "p", weights_access_token="tok").result(10).startswith("tinker://")
    assert server.requests[-1].headers["x-tinker-weights-access-token"] == "tok"


def test_copies_need_a_project(server: Any, service: Any, monkeypatch: Any) -> None:
    client = tinker.RestClient(base_url=server.url)
    for copy in (client.copy_weights, service.copy_weights):
        with pytest.raises(ValueError, match="TINKER_PROJECT_ID"):
            copy(PATH)
    monkeypatch.setenv("TINKER_PROJECT_ID", "env")
    client.copy_weights(PATH).result(10)
    tinker.ServiceClient(project_id="mine", base_url=server.url).copy_weights(PATH, ttl_seconds=5).result(10)
    assert [c.json["destination_project_id"] for c in server.calls("copy_weights")] == ["env", "mine"]
    assert server.calls("create_session") == []


def test_paths_are_checked_before_sending(server: Any) -> None:
    client = tinker.RestClient(base_url=server.url)
    for bad in ("nonsense", "tinker://a/weights", "tinker://a/b/c", "tinker://a/weights/c/d", "tinker:///weights/c"):
        for method in (client.delete_checkpoint_from_tinker_path, client.get_training_run_by_tinker_path):
            with pytest.raises(ValueError, match="Invalid tinker path"):
                method(bad)
    with pytest.raises(ValueError, match="external"):
        client.get_external_weights_urls(PATH)
    with pytest.raises(ValueError):
        tinker.AdminClient(base_url=server.url).get_billing_usage("yesterday", "today")
    assert server.requests == []


def test_a_trace_is_waited_for(server: Any, mock: Any, waits: list[float]) -> None:
    client = tinker.RestClient(base_url=server.url)
    server.script("sessions/s/trace_export", *[mock.Answer(json={"status": "pending"})] * 2)
    assert client.export_session_trace("s").result(10).endswith("/trace")
    assert waits == [5.0, 5.0]
    server.script("sessions/s/trace_export", mock.Answer(json={"status": "failed", "error": "too old"}))
    with pytest.raises(tinker.TinkerError, match="too old"):
        client.export_session_trace("s").result(10)


def test_rest_clients_share_one_connection_without_a_session(server: Any) -> None:
    first, second = tinker.RestClient(base_url=server.url), tinker.AdminClient(base_url=server.url)
    assert first.holder is second.holder
    first.list_sessions().result(10)
    second.get_audit_log().result(10)
    assert server.paths() == ["client/config", "client/dynamic_config", "sessions", "audit"]


def test_old_ways_to_a_rest_client(service: Any) -> None:
    with pytest.warns(FutureWarning, match="RestClient"):
        assert isinstance(service.create_rest_client(), tinker.RestClient)
    with pytest.warns(FutureWarning, match="RestClient"):
        assert service.get_server_capabilities().supported_models[0].model_name == "Qwen/Qwen3-8B"


def test_searching_is_experimental(server: Any) -> None:
    with pytest.warns(tinker.ExperimentalWarning):
        tinker.RestClient(base_url=server.url).search_sessions(types.SessionSearchRequest()).result(10)


def test_console_pages(training: Any, service: Any) -> None:
    base = "https://tinker.thinkingmachines.ai"
    assert training.get_console_url() == f"{base}/training_runs/sess-abc%3Atrain%3A0"
    assert service.get_console_url() == f"{base}/sessions/sess-abc"
    saved = training.save_weights_for_sampler("s").result(10)
    assert saved.get_console_url() == f"{base}/checkpoints/sess-abc%3Atrain%3A0/sampler_weights%2Fs"
    assert saved.get_playground_url() == (
        f"{base}/playground?mode=checkpoint&checkpoint=tinker%3A%2F%2Fsess-abc%3Atrain%3A0%2Fsampler_weights%2Fs"
    )
