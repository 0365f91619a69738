"""The life of a session: creation, heartbeats, telemetry, end."""

from __future__ import annotations

import time
from typing import Any

import pytest

import tinker
from tinker import _background, _telemetry, types


def test_concurrent_first_calls_make_one_session(server: Any, service: Any) -> None:
    futures = [service.create_lora_training_client("m") for _ in range(8)]
    ids = {future.result(20).model_id for future in futures}
    assert len(server.calls("create_session")) == len(server.calls("client/config")) == 1
    assert ids == {f"sess-abc:train:{n}" for n in range(8)}


def test_project_name_and_headers_of_a_session(server: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TINKER_PROJECT_ID", "from-env")
    monkeypatch.setenv("CLOUDFLARE_ACCESS_CLIENT_ID", "id")
    monkeypatch.setenv("CLOUDFLARE_ACCESS_CLIENT_SECRET", "secret")
    service = tinker.ServiceClient(
        display_name="mine", base_url=server.url, default_headers_overrides={"User-Agent": "me", "X-Extra": "1"}
    )
    service.create_sampling_client(base_model="m").result(10)
    (call,) = server.calls("create_session")
    assert (call.json["project_id"], call.json["display_name"]) == ("from-env", "mine")
    assert call.json["user_metadata"] == {} and call.json["tags"] == []
    assert (call.headers["user-agent"], call.headers["x-extra"]) == ("me", "1")
    assert (call.headers["cf-access-client-id"], call.headers["cf-access-client-secret"]) == ("id", "secret")


def test_messages_of_the_server_are_logged(server: Any, mock: Any, service: Any, caplog: Any) -> None:
    caplog.set_level("INFO", logger="tinker")
    answer = {"session_id": "s", "info_message": "i!", "warning_message": "w!", "error_message": "e!"}
    server.script("create_session", mock.Answer(json=answer))
    service.create_sampling_client(base_model="m").result(10)
    logged = {(r.levelname, r.message) for r in caplog.records}
    assert {("INFO", "i!"), ("WARNING", "w!"), ("ERROR", "e!")} <= logged


def test_heartbeats_go_on_until_the_session_is_gone(server: Any, mock: Any, service: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(_background, "HEARTBEAT_SECONDS", 0.05)
    server.script("session_heartbeat", mock.Answer(), mock.Answer(500), mock.Answer(404, json={}), mock.Answer(410))
    service.create_sampling_client(base_model="m").result(10)
    calls = server.wait_calls("session_heartbeat", 4)
    time.sleep(0.3)
    assert len(server.calls("session_heartbeat")) == 4
    assert calls[0].body == b'{"session_id":"sess-abc","type":"session_heartbeat"}'


def test_failing_heartbeats_never_fail_calls(server: Any, mock: Any, service: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(_background, "HEARTBEAT_SECONDS", 0.02)
    server.always("session_heartbeat", mock.Answer(500))
    client = service.create_lora_training_client("m").result(10)
    server.wait_calls("session_heartbeat", 3)
    assert client.optim_step(types.AdamParams()).result(10).metrics


def test_a_client_that_is_gone_stops_its_heartbeats(server: Any, monkeypatch: Any) -> None:
    import gc

    monkeypatch.setattr(_background, "HEARTBEAT_SECONDS", 0.05)
    client = tinker.ServiceClient(base_url=server.url).create_sampling_client(base_model="m").result(10)
    server.wait_calls("session_heartbeat", 2)
    del client
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        gc.collect()
        before = len(server.calls("session_heartbeat"))
        time.sleep(0.3)
        if len(server.calls("session_heartbeat")) == before:
            return
    raise AssertionError("heartbeats went on")


def test_dynamic_flags_are_fetched_again(server: Any, mock: Any, service: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(_background, "_MIN_REFRESH_SECONDS", 0.05)
    server.dynamic = {"refresh_interval_sec": 0, "sample_cancel_max_batch_size": 3}
    client = service.create_lora_training_client("m").result(10)
    server.wait_calls("client/dynamic_config", 2)
    server.always("client/dynamic_config", mock.Answer(500))
    server.wait_calls("client/dynamic_config", 4)
    assert client.holder.dynamic_flags.sample_cancel_max_batch_size == 3  # a failure keeps the old values


@pytest.mark.parametrize(
    ("error", "reason"), [(None, "success"), (ValueError("x"), "errored"), (KeyboardInterrupt(), "interrupted")]
)
def test_leaving_the_with_block_finishes_the_session(server: Any, error: BaseException | None, reason: str) -> None:
    def work() -> None:
        with tinker.ServiceClient(base_url=server.url) as service:
            service.create_sampling_client(base_model="m").result(10)
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    (call,) = server.calls("sessions/sess-abc/finish")
    assert call.json["reason"] == {"type": reason}
    assert "detail" in call.json  # null is sent


def test_closing_a_client_that_did_nothing_sends_nothing(server: Any, service: Any) -> None:
    service.close("success").result(10)
    service.close("success").result(10)
    assert server.requests == []


def test_unknown_arguments_are_ignored_with_a_warning(server: Any) -> None:
    with pytest.warns(FutureWarning, match="colour"):
        tinker.ServiceClient(base_url=server.url, colour="red")


def test_telemetry_reports_the_start_and_exceptions(server: Any, mock: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "1")
    monkeypatch.setattr(_telemetry, "FLUSH_SECONDS", 0.05)
    service = tinker.ServiceClient(base_url=server.url)
    service.create_sampling_client(base_model="m").result(10)
    first = server.wait_calls("telemetry", 1)[0].json
    assert first["session_id"] == "sess-abc" and first["sdk_version"] == "0.38.0"
    assert first["platform"] and first["process_uuid"]
    (start,) = first["events"]
    assert (start["event"], start["severity"], start["event_session_index"]) == ("SESSION_START", "INFO", 0)
    assert start["timestamp"].endswith("Z")
    server.script("create_model", mock.Answer(422, json={"detail": "no"}))
    with pytest.raises(tinker.UnprocessableEntityError):
        service.create_lora_training_client("m").result(10)
    (event,) = server.wait_calls("telemetry", 2)[1].json["events"]
    assert (event["event"], event["severity"]) == ("UNHANDLED_EXCEPTION", "ERROR")
    assert event["error_type"] == "UnprocessableEntityError" and "422" in event["error_message"]


def test_a_hanging_telemetry_endpoint_delays_no_error(server: Any, mock: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "1")
    server.always("telemetry", mock.Answer(json={"status": "accepted"}, delay=20))
    service = tinker.ServiceClient(base_url=server.url)
    server.script("create_model", mock.Answer(422, json={"detail": "no"}))
    started = time.monotonic()
    with pytest.raises(tinker.UnprocessableEntityError):
        service.create_lora_training_client("m").result(10)
    assert time.monotonic() - started < 3


def test_telemetry_without_a_session_and_refused_batches(server: Any, mock: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "on")
    client = tinker.RestClient(base_url=server.url)
    server.script("samplers/s", mock.Answer(404, json={}))
    server.script("telemetry", mock.Answer(500))
    for _ in range(2):
        with pytest.raises(tinker.NotFoundError):
            server.script("samplers/s", mock.Answer(404, json={}))
            client.get_sampler("s").result(10)
    calls = server.wait_calls("telemetry", 2)
    assert all(call.json["session_id"].startswith("sessionless-") for call in calls)
    assert len(calls[1].json["events"]) == 1  # the refused batch was dropped


@pytest.mark.parametrize("value", ["0", "false", "no", "off", ""])
def test_telemetry_can_be_turned_off(server: Any, monkeypatch: Any, value: str) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", value)
    monkeypatch.setattr(_telemetry, "FLUSH_SECONDS", 0.05)
    tinker.ServiceClient(base_url=server.url).create_sampling_client(base_model="m").result(10)
    time.sleep(0.3)
    assert server.calls("telemetry") == []


def test_sessions_do_not_need_http_at_all(mock: Any) -> None:
    """The transport is replaceable: the same client over an in-memory application."""
    import httpx

    from tinker._transport import use_transport

    application = mock.MockTinker()
    application.url = "http://tinker.invalid"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await application._app({**scope, "client": ("memory", 0)}, receive, send)

    with use_transport(lambda: httpx.ASGITransport(app)):
        service = tinker.ServiceClient(base_url="http://tinker.invalid", api_key="tml-x")
        client = service.create_lora_training_client("m").result(10)
        assert client.optim_step(types.AdamParams()).result(10).metrics == {"grad_norm:mean": 0.3}
