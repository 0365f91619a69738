"""Requests that are nearly right, to a server that works: no answer is a 5xx, none hangs, and afterwards it still works.

``TINKER_FUZZ_EXAMPLES`` sets the length. ``TINKER_SCHEMATHESIS`` names the program of that name, when it is not on PATH.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinker_backend.conformance import Suite, Verdict, select, wire
from tinker_backend.conformance.client import Run, Session

FUZZ = settings.get_profile("fuzz")
pytestmark = pytest.mark.timeout(300 + FUZZ.max_examples)
DEADLINE = 20.0

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        [-1, 0, 2**31, 2**63, 2**64, 10**30, 1e308, -0.0, "", "x" * 5000, "../..", "\x00", "😀", [], {}, [[]]]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=4),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


class World:
    """A session with a run, a sampler and checkpoints, to aim at."""

    def __init__(self, url: str, key: str) -> None:
        self.suite = Suite(url, key, deadline=60)
        self.session: Session = self.suite.session()
        self.run: Run = self.session.run("tiny")
        self.sampler = self.session.sampler(base_model="tiny")
        self.path = self.run.save("fuzz")
        self.sampler_path = self.run.save_for_sampler("fuzz")
        self.http = httpx.Client(base_url=url, headers={"x-api-key": key}, timeout=DEADLINE)

    def bodies(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Right requests; nothing in them waits."""
        session, run, sampler = self.session, self.run, self.sampler
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        adam = {"learning_rate": 0.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0}
        api = "/api/v1/"
        target = {"data": [1], "dtype": "int64", "shape": [1, 1]}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        # Requests of a run leave out seq_id: the server numbers them itself, so none waits for another.
        return [
            ("POST", api + "create_session", {"tags": ["t"], "user_metadata": {"a": 1}, "sdk_version": "1"}),
            ("POST", api + "session_heartbeat", {"session_id": session.id}),
            ("POST", api + "create_model", session.create_body("tiny", number=0)),
            ("POST", api + "get_info", {"model_id": run.id}),
            ("POST", api + "optim_step", {"model_id": run.id, "adam_params": adam}),
            ("POST", api + "save_weights", {"model_id": run.id, "path": "again", "overwrite": True, "ttl_seconds": 60}),
            ("POST", api + "save_weights_for_sampler", {"model_id": run.id, "sampling_session_seq_id": 9}),
            ("POST", api + "save_weights_external", {"model_id": run.id, "path": "again", "ttl_seconds": 60}),
            ("POST", api + "weights_info", {"tinker_path": self.path}),
            ("POST", api + "load_weights", {"model_id": run.id, "path": self.path, "optimizer": False}),
            ("POST", api + "copy_weights", {"source_path": self.sampler_path, "destination_project_id": "p"}),
            ("POST", api + "create_sampling_session", session.sampler_body(base_model="tiny")),
            ("POST", api + "asample", sampler.body([5, 6], 1, {"max_tokens": 1, "seed": 1, "stop": [3]})),
            (
                "POST",
                api + "asample",
                sampler.body([5, 6], 1, {"max_tokens": 1}, prompt_logprobs=True, target_prompt_logprobs=target),
            ),
            ("POST", api + "retrieve_future", {"request_id": "none", "allow_metadata_only": True}),
            ("POST", api + "cancel_future", {"request_id": f"{sampler.id}:0"}),
            (
                "POST",
                api + "retrieve_futures",
                {"target": {"sampling_session_id": sampler.id}, "timeout": 0, "prev_cursor": 0},
            ),
            ("POST", api + "sessions/search", {"limit": 5, "owner": {"type": "own"}, "statuses": [{"type": "active"}]}),
            ("POST", api + "telemetry", {"events": [{"event": "X"}], "session_id": session.id}),
            ("PUT", f"{api}sessions/{session.id}/project", {"project_id": "p"}),
            ("POST", "/oai/api/v1/chat/completions", chat | {"tools": [tool], "tool_choice": "auto", "logprobs": True}),
            ("POST", "/oai/api/v1/chat/completions", chat | {"stream": True, "n": 2, "stop": ["x"]}),
            ("POST", "/oai/api/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1, "echo": True}),
            ("POST", "/anthropic/api/v1/messages", chat | {"system": "s", "top_k": 3, "stop_sequences": ["x"]}),
            ("POST", "/anthropic/api/v1/messages/count_tokens", {k: chat[k] for k in ("model", "messages")}),
        ]


@pytest.fixture(scope="module")
def world(engine_backend: Any, door_keys: tuple[Path, dict[str, str]]) -> Iterator[World]:
    world = World(engine_backend.url, door_keys[1]["alice"])
    yield world
    # What was sent did no lasting harm.
    for probe in select(["a-batch-sums", "sampled-logprobs-equal-scored-ones", "a-resume-with-optimizer-is-exact"]):
        outcome = probe.run(world.suite)
        assert outcome.verdict is Verdict.PASS, outcome.detail
    world.http.close()


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [place for key, child in items for place in _places(child, (*path, key))]


def _put(document: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        document = document[key]
    document[place[-1]] = value


def _check(answer: httpx.Response) -> None:
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        assert "server_error" not in answer.text and "api_error" not in answer.text, answer.text[-500:]
    # 503 is an honest answer only where the model lacks something; the tiny model lacks nothing.
    assert answer.status_code < 500, (answer.status_code, answer.text[:500])
    if answer.status_code >= 400:
        assert int(answer.headers["content-length"]) > 0 and answer.json()


@given(data=st.data())
@settings(FUZZ, max_examples=FUZZ.max_examples * 4)
def test_a_request_with_one_wrong_value_is_answered(world: World, data: st.DataObject) -> None:
    method, path, body = data.draw(st.sampled_from(world.bodies()))
    body = copy.deepcopy(body)
    for _ in range(data.draw(st.integers(1, 2))):
        places = _places(body)
        if places:
            _put(body, data.draw(st.sampled_from(places)), copy.deepcopy(data.draw(JUNK)))
    _check(world.http.request(method, path, json=body))


@given(st.binary(max_size=300), st.sampled_from(["application/json", "application/x-protobuf", "text/plain", ""]))
@settings(FUZZ)
def test_any_bytes_are_answered(world: World, body: bytes, kind: str) -> None:
    for path in ("forward_backward", "forward", "asample", "create_model"):
        headers = {"content-type": kind} if kind else {}
        _check(world.http.post(f"/api/v1/{path}", content=body, headers=headers))


@given(
    st.lists(st.integers(-5, 600), max_size=6),
    st.lists(st.floats(width=32), max_size=6),
    st.lists(st.integers(-5, 600), max_size=6),
    st.sampled_from(["cross_entropy", "ppo", "importance_sampling", "cispo", "dro", "gspo", "custom", "nonsense"]),
    st.sampled_from([(), (1,), (2,), (6,), (2, 3), (-1, -6), (2**40, 2**40)]),
    st.booleans(),
)
@settings(FUZZ)
def test_any_datum_is_answered_and_its_future_ends(
    world: World,
    tokens: list[int],
    numbers: list[float],
    targets: list[int],
    loss_fn: str,
    shape: tuple[int, ...],
    forward_only: bool,
) -> None:
    request = wire.message("ForwardBackwardRequest")
    request.model_id, request.loss_fn, request.forward_only = world.run.id, loss_fn, forward_only
    datum = request.data.add()
    datum.model_input.add().encoded_text.tokens = np.array(tokens, "<i4").tobytes()
    wire.write_tensor(datum.loss_fn_inputs["target_tokens"], np.array(targets, "<i8"))
    for name in ("weights",) if loss_fn == "cross_entropy" else ("logprobs", "advantages"):
        wire.write_tensor(datum.loss_fn_inputs[name], np.array(numbers, "<f4"))
        if shape:
            del datum.loss_fn_inputs[name].shape[:]
            datum.loss_fn_inputs[name].shape.extend(shape)
    headers = {"content-type": "application/x-protobuf"}
    answer = world.http.post("/api/v1/forward_backward", content=request.SerializeToString(), headers=headers)
    _check(answer)
    if answer.status_code == 200:
        _check(world.http.post("/api/v1/retrieve_future", json={"request_id": answer.json()["request_id"]}))


@given(st.text(max_size=30), st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH"]))
@settings(FUZZ)
def test_any_path_is_answered(world: World, name: str, method: str) -> None:
    quoted = quote(name, safe="")
    for prefix in (
        "training_runs/",
        "sessions/",
        "samplers/",
        "downloads/",
        f"training_runs/{world.run.id}/checkpoints/",
    ):
        _check(world.http.request(method, f"/api/v1/{prefix}{quoted}"))


def test_the_openapi_document_is_kept(engine_backend: Any, tmp_path: Path) -> None:
    program = os.environ.get("TINKER_SCHEMATHESIS") or shutil.which("schemathesis")
    if program is None:
        pytest.skip("schemathesis is not installed; name it in TINKER_SCHEMATHESIS")
    from tinker_backend.auth import KeyFile

    # A key of its own, since one of the operations takes the caller's key away.
    key_file = Path((engine_backend.folder / "runtime.yaml").read_text().split("api_keys_file: ")[1].split("\n")[0])
    key, _ = KeyFile(key_file).create("schemathesis")
    command = [program, "run", f"{engine_backend.url}/openapi.json", "-H", f"X-API-Key: {key}"]
    command += ["--checks", "not_a_server_error", "--request-timeout", str(DEADLINE), "--seed", "1"]
    command += ["--max-examples", str(max(5, FUZZ.max_examples // 20)), "--exclude-path", "/api/v1/auth/apikey/me"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240 + 2 * FUZZ.max_examples)
    print(done.stdout[done.stdout.find("Test cases:") :])
    # The program's own trouble with a schema ends it with an error too; findings are listed as failures.
    assert "Test cases:" in done.stdout and "= FAILURES =" not in done.stdout, done.stdout[-4000:]
    assert "Network Error" not in done.stdout, done.stdout[-4000:]
