"""The service itself: flags, sessions, heartbeats, telemetry, REST objects and the form of its errors."""

from __future__ import annotations

import time

from ..probe import check, check_refused, probe
from ..suite import Suite


@probe("healthz answers ok, client/config answers with an object")
def the_service_is_up(suite: Suite) -> str:
    check(suite.client.get("healthz").get("status") == "ok", "healthz does not say ok")
    flags = suite.client.post("client/config", {"sdk_version": "0.38.0"})
    check(isinstance(flags, dict), f"client/config answers {flags!r}")
    return f"flags {flags}"


@probe("get_server_capabilities names the models, each with name, context length and what it can do")
def capabilities_name_the_models(suite: Suite) -> str:
    models = suite.client.get("get_server_capabilities")["supported_models"]
    check(len(models) > 0, "no model is named")
    for model in models:
        check(isinstance(model.get("model_name"), str), f"a model without a name: {model}")
        check(isinstance(model.get("max_context_length"), int | type(None)), f"max_context_length of {model}")
    return ", ".join(model["model_name"] for model in models)[:120]


@probe("get_info describes a run: model name, LoRA and its rank")
def get_info_describes_a_run(suite: Suite) -> str:
    with suite.run(rank=4) as run:
        facts = suite.client.post("get_info", {"model_id": run.id, "type": "get_info"})
    check(facts["model_id"] == run.id, f"model_id is {facts['model_id']}")
    check(bool(facts["model_data"].get("model_name")), "model_data.model_name is missing: tokenizer helpers break")
    check(facts.get("is_lora") is True and facts.get("lora_rank") == 4, f"is_lora and lora_rank say {facts}")
    return f"{facts['model_data']}"


@probe("A session takes heartbeats until it is finished, then answers 410")
def a_session_ends(suite: Suite) -> str:
    session = suite.session()
    beat = {"session_id": session.id, "type": "session_heartbeat"}
    alive = suite.client.request("POST", "session_heartbeat", json=beat)
    check(alive.status_code == 200, f"heartbeat: HTTP {alive.status_code} {alive.text[:120]}")
    ended = session.finish()
    check(ended.status_code < 300, f"finish: HTTP {ended.status_code} {ended.text[:120]}")
    after = suite.client.request("POST", "session_heartbeat", json=beat)
    check(after.status_code == 410, f"heartbeat after finish: HTTP {after.status_code}, not 410")
    again = session.finish()
    check(again.status_code < 300, f"a second finish: HTTP {again.status_code}; a retried request must succeed")
    return "200, then 410"


@probe("Telemetry is taken at once with exactly the body that clients check")
def telemetry_is_taken_at_once(suite: Suite) -> str:
    event = {
        "event": "GENERIC_EVENT",
        "event_id": "1",
        "event_session_index": 0,
        "severity": "INFO",
        "timestamp": "2026-01-01T00:00:00Z",
        "event_name": "conformance",
        "event_data": {},
    }
    body = {"events": [event], "platform": "Linux", "sdk_version": "0.38.0", "session_id": "sessionless-1"}
    started = time.monotonic()
    answer = suite.client.post("telemetry", body | {"process_uuid": "1"})
    waited = time.monotonic() - started
    check(answer == {"status": "accepted"}, f"the answer is {answer}")
    check(waited < 5, f"the answer takes {waited:.1f} s, which holds up every error of a client")
    return f"{waited * 1000:.0f} ms"


@probe("Runs and sessions are listed and described")
def runs_and_sessions_are_listed(suite: Suite) -> str:
    with suite.session() as session:
        run = session.run(suite.base_model)
        described = suite.client.get(f"training_runs/{run.id}")
        for field in ("training_run_id", "base_model", "model_owner", "is_lora", "last_request_time"):
            check(field in described, f"training run without {field}: {described}")
        page = suite.client.get("training_runs", limit=5, offset=0)
        check({"limit", "offset", "total_count"} <= set(page["cursor"]), f"cursor {page.get('cursor')}")
        check(run.id in [entry["training_run_id"] for entry in page["training_runs"]], "the newest run is not listed")
        parts = suite.client.get(f"sessions/{session.id}")
        check(run.id in parts["training_run_ids"], f"the session's runs are {parts['training_run_ids']}")
        check(session.id in suite.client.get("sessions", limit=20, offset=0)["sessions"], "the session is not listed")
        check_refused(lambda: suite.client.get("training_runs/no-such-run"), "an unknown run")
        check_refused(lambda: suite.client.get("sessions/no-such-session"), "an unknown session")
    return f"{run.id}"


@probe("A malformed body is a 4xx with a JSON detail, uncompressed and with its length")
def a_malformed_body_has_a_plain_answer(suite: Suite) -> str:
    statuses = []
    for path, options in (
        ("create_session", {"content": b"{", "headers": {"Content-Type": "application/json"}}),
        ("create_model", {"json": {"session_id": 5}}),
        ("forward_backward", {"content": b"\xff\xff\xff", "headers": {"Content-Type": "application/x-protobuf"}}),
        ("asample", {"json": []}),
    ):
        answer = suite.client.request("POST", path, **options)
        check(400 <= answer.status_code < 500, f"{path}: HTTP {answer.status_code} {answer.text[:120]}")
        check("detail" in answer.json(), f"{path}: no detail in {answer.text[:120]}")
        check(
            int(answer.headers.get("content-length", 0)) > 0, f"{path}: no Content-Length; clients take it for a reset"
        )
        check("content-encoding" not in answer.headers, f"{path}: the answer is compressed")
        statuses.append(f"{path} {answer.status_code}")
    return ", ".join(statuses)
