"""Checkpoints: overwrite, time to live, publish, download, copy, pinned samplers."""

from __future__ import annotations

import io
import tarfile
import time
from typing import Any

import httpx
import pytest


def saved(wire: Any, route: str = "save_weights", seq_id: int = 1, run: str | None = None, **fields: Any) -> str:
    run = run or wire.model()
    result = wire.result(wire.post(route, model_id=run, seq_id=seq_id, **({"path": "one"} | fields)))
    assert "path" in result, result
    return str(result["path"])


def test_the_same_name_twice_is_an_error_unless_overwritten(wire: Any) -> None:
    run = wire.model()
    path = saved(wire, run=run)
    failure = wire.result(wire.post("save_weights", model_id=run, seq_id=2, path="one"))
    assert failure["category"] == "user" and "overwrite" in failure["error"]
    wire.forward_backward(run, 3)
    wire.optim_step(run, 4)
    assert saved(wire, run=run, seq_id=5, overwrite=True) == path
    session = wire.session()
    promise = wire.post("load_weights", session_id=session, model_seq_id=0, path=path, optimizer=True)
    copy = wire.result(promise)["model_id"]
    wire.forward_backward(copy, 1)
    wire.forward_backward(run, 6)
    assert wire.result(wire.optim_step(copy, 2)) == wire.result(wire.optim_step(run, 7))


def test_loading_without_the_optimizer_starts_it_afresh(wire: Any) -> None:
    run = wire.model()
    wire.forward_backward(run, 1)
    wire.optim_step(run, 2)
    path = saved(wire, run=run, seq_id=3)
    session, steps = wire.session(), []
    for n, optimizer in enumerate((True, False)):
        promise = wire.post("load_weights", session_id=session, model_seq_id=n, path=path, optimizer=optimizer)
        copy = wire.result(promise)["model_id"]
        wire.forward_backward(copy, 1)
        steps.append(wire.result(wire.optim_step(copy, 2))["metrics"])
    assert steps[0]["steps"] == 2 and steps[1]["steps"] == 1
    assert steps[0]["weight"] != steps[1]["weight"]


def test_a_checkpoint_of_another_adapter_shape_is_refused(wire: Any) -> None:
    path = saved(wire)
    run = wire.model(lora_config={"rank": 4})
    failure = wire.result(wire.post("load_weights", model_id=run, seq_id=1, path=path, optimizer=False))
    assert failure["category"] == "user" and "rank" in failure["error"]
    sampler_path = saved(wire, "save_weights_for_sampler", path="s")
    detail = wire.post("load_weights", 400, model_id=run, seq_id=2, path=sampler_path, optimizer=False)["detail"]
    assert "training checkpoint" in detail


def test_the_time_to_live_really_ends(wire: Any, shared_backend: Any) -> None:
    path = saved(wire, ttl_seconds=1)
    run = path.split("/")[2]
    folder = next((shared_backend.folder / "checkpoints").glob(f"{run.replace(':', '-')}/weights/one"))
    assert wire.http.get(f"training_runs/{run}/checkpoints").json()["checkpoints"][0]["expires_at"]
    deadline = time.monotonic() + 10
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert wire.http.get(f"training_runs/{run}/checkpoints").json()["checkpoints"] == []
    wire.post("weights_info", 404, tinker_path=path)


def test_the_time_to_live_can_be_set_and_removed(wire: Any) -> None:
    path = saved(wire)
    run = path.split("/")[2]
    url = f"training_runs/{run}/checkpoints/weights/one"

    def expiry() -> Any:
        return wire.http.get(f"training_runs/{run}/checkpoints").json()["checkpoints"][0]["expires_at"]

    assert wire.http.put(f"{url}/ttl", json={"ttl_seconds": 3600}).status_code == 200
    assert expiry() is not None
    assert wire.http.put(f"{url}/ttl", json={"ttl_seconds": None}).status_code == 200
    assert expiry() is None
    assert wire.http.put(f"{url}/ttl", json={"ttl_seconds": -1}).status_code == 400


def test_publishing_twice_is_no_conflict(wire: Any) -> None:
    path = saved(wire)
    run = path.split("/")[2]
    url = f"training_runs/{run}/checkpoints/weights/one/publish"
    assert wire.http.post(url).status_code == wire.http.post(url).status_code == 200
    assert wire.http.get("checkpoints").json()["checkpoints"][0]["public"] is True
    assert wire.http.delete(url).status_code == wire.http.delete(url).status_code == 200


def test_external_weights_are_downloaded_by_signed_links(wire: Any) -> None:
    path = saved(wire, "save_weights_external", path="out")
    run = path.split("/")[2]
    url = f"training_runs/{run}/checkpoints/external_weights/out/external_weights_urls"
    urls = wire.http.get(url).json()["urls"]
    assert set(urls) == {"adapter_model.safetensors", "tinker.json"}
    link = urls["adapter_model.safetensors"]
    assert httpx.get(link).content == b"x" * 1000
    head, _, tail = link.rpartition("/downloads/")
    token, _, file = tail.partition("/")
    assert httpx.get(f"{head}/downloads/{token[:-4]}AAAA/{file}").status_code == 403
    assert httpx.get(f"{head}/downloads/{token}/../../../ledger.db").status_code in (403, 404)
    assert httpx.get(f"{head}/downloads/{token}/%2e%2e%2f%2e%2e%2fledger.db").status_code == 404
    training = saved(wire)
    run = training.split("/")[2]
    assert wire.http.get(f"training_runs/{run}/checkpoints/weights/one/external_weights_urls").status_code == 400
    run = saved(wire, "save_weights_for_sampler", path="out").split("/")[2]
    urls = wire.http.get(f"training_runs/{run}/checkpoints/sampler_weights/out/external_weights_urls").json()["urls"]
    assert list(urls) == ["adapter_model.safetensors"]
    assert httpx.get(urls["adapter_model.safetensors"]).content == b"x" * 1000


def test_the_archive_link_of_older_clients_gives_a_tar_file(wire: Any) -> None:
    path = saved(wire)
    run = path.split("/")[2]
    answer = wire.http.get(f"training_runs/{run}/checkpoints/weights/one/archive")
    assert answer.status_code == 302
    with tarfile.open(fileobj=io.BytesIO(httpx.get(answer.headers["location"]).content)) as tar:
        assert sorted(tar.getnames()) == ["adapter_model.safetensors", "tinker.json"]


def test_a_copy_lives_on_when_its_source_is_deleted(wire: Any) -> None:
    path = saved(wire, user_metadata={"k": "v"})
    copy = wire.post("copy_weights", source_path=path, destination_project_id="p")["tinker_path"]
    assert copy != path and copy.endswith("/weights/one")
    run = path.split("/")[2]
    assert wire.http.delete(f"training_runs/{run}/checkpoints/weights/one").status_code == 200
    wire.post("weights_info", 404, tinker_path=path)
    assert wire.post("weights_info", tinker_path=copy)["lora_rank"] == 8
    promise = wire.post("load_weights", session_id=wire.session(), model_seq_id=0, path=copy, optimizer=True)
    assert "model_id" in wire.result(promise)


def test_a_run_made_from_a_checkpoint_outlives_it(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend()
    wire = new_wire(backend.url)
    path = saved(wire)
    promise = wire.post("load_weights", session_id=wire.session(), model_seq_id=0, path=path, optimizer=True)
    run = wire.result(promise)["model_id"]
    wire.http.delete(f"training_runs/{path.split('/')[2]}/checkpoints/weights/one")
    backend.kill_runtime()
    wire.forward_backward(run, 1)
    assert wire.result(wire.optim_step(run, 2))["metrics"]["steps"] == 1


def test_a_sampler_is_pinned_to_its_weights_and_sampling_leaves_the_run_alone(wire: Any) -> None:
    run = wire.model()
    body = {"prompt": {"chunks": [{"tokens": [1, 2, 3]}]}, "sampling_params": {"max_tokens": 3, "seed": 1}}
    named = saved(wire, "save_weights_for_sampler", run=run, path="s")
    session = wire.session()
    sampler = wire.post("create_sampling_session", session_id=session, sampling_session_seq_id=0, model_path=named)
    ids = {"sampling_session_id": sampler["sampling_session_id"]}
    before = wire.result(wire.post("asample", **ids, seq_id=0, **body))
    weights = []
    for seq in (2, 4, 6):
        wire.forward_backward(run, seq)
        weights.append(wire.result(wire.optim_step(run, seq + 1))["metrics"]["weight"])
        assert wire.result(wire.post("asample", **ids, seq_id=seq, **body))["sequences"] == before["sequences"]
    assert len(set(weights)) == 3


def test_inflight_samplers_follow_the_run_and_snapshots_do_not(wire: Any) -> None:
    run = wire.model()

    def publish(seq_id: int, n: int, kind: str) -> str:
        body = {"model_id": run, "seq_id": seq_id, "sampling_session_seq_id": n, "kind": kind}
        return str(wire.result(wire.post("save_weights_for_sampler", **body))["sampling_session_id"])

    def logprobs(sampler: str, seq_id: int) -> Any:
        body = {"sampling_session_id": sampler, "seq_id": seq_id, "prompt": {"chunks": [{"tokens": [1, 2, 3]}]}}
        return wire.result(wire.post("asample", **body, prompt_logprobs=True))["prompt_logprobs"]

    snapshot, inflight = publish(1, 0, "snapshot"), publish(2, 1, "inflight")
    first = logprobs(snapshot, 0)
    assert logprobs(inflight, 0) == first
    wire.forward_backward(run, 3)
    wire.optim_step(run, 4)
    newer = publish(5, 2, "inflight")
    assert logprobs(snapshot, 1) == first
    assert logprobs(inflight, 1) == logprobs(newer, 0) != first


def test_metadata_listings_and_figures_are_kept(wire: Any) -> None:
    session = wire.post("create_session", tags=["a"], user_metadata={"x": "y"}, display_name="mine", sdk_version="t")
    run = wire.model(session["session_id"], user_metadata={"r": "1"})
    saved(wire, run=run, user_metadata={"k": "v"})
    found = wire.http.get(f"training_runs/{run}").json()
    assert found["user_metadata"] == {"r": "1"} and found["last_checkpoint"]["user_metadata"] == {"k": "v"}
    listed = wire.http.get("training_runs?limit=1").json()
    assert listed["training_runs"][0]["training_run_id"] == run and listed["cursor"]["total_count"] > 1
    assert wire.http.get(f"sessions/{session['session_id']}").json()["training_run_ids"] == [run]
    assert wire.http.put(f"sessions/{session['session_id']}/project", json={"project_id": "p1"}).status_code == 200
    search = wire.post("sessions/search", project_ids=["p1"], user_metadata={"x": "y"}, display_name="mine")
    assert [s["session_id"] for s in search["sessions"]] == [session["session_id"]]
    assert search["sessions"][0]["checkpoints_count"] == 1
    assert wire.http.get("training_runs?project_id=p1").json()["cursor"]["total_count"] == 1
    assert wire.http.get("audit?event_type=checkpoints").json()["entries"]
    usage = wire.http.get("billing/usage/checkpoints/current?project_id=p1").json()["data"]
    assert usage[0]["checkpoint_count"] == 1


def test_sessions_page_by_cursor(wire: Any) -> None:
    made = [wire.session() for _ in range(5)]
    seen: list[str] = []
    body: dict[str, Any] = {"limit": 2}
    while len(seen) < 5:
        page = wire.post("sessions/search", **body)
        seen += [s["session_id"] for s in page["sessions"]]
        body["cursor"] = page.get("next_cursor")
    assert seen[:5] == made[::-1]


def test_a_trace_shows_the_operations_of_a_session(wire: Any) -> None:
    session = wire.session()
    run = wire.model(session)
    wire.result(wire.forward_backward(run, 1))
    export = wire.http.get(f"sessions/{session}/trace_export").json()
    assert export["status"] == "ready"
    names = [event["name"] for event in httpx.get(export["url"]).json()["traceEvents"]]
    assert "forward_backward" in names and "create" in names


def test_a_finished_session_ends_its_heartbeat(wire: Any) -> None:
    session = wire.session()
    wire.post("session_heartbeat", session_id=session)
    wire.post(f"sessions/{session}/finish", reason={"type": "success"}, detail=None)
    wire.post("session_heartbeat", 410, session_id=session)
    status = wire.post("sessions/search", session_id=session)["sessions"][0]["status"]
    assert status == {"type": "client_finished", "reason": {"type": "success"}, "detail": None}


@pytest.mark.slow
def test_what_is_kept_to_go_on_with_a_run_goes_with_its_session_and_checkpoints_stay(
    make_backend: Any, new_wire: Any
) -> None:
    limits = {"result_keep_seconds": 1, "run_idle_seconds": 1}
    backend = make_backend(limits=limits)
    wire = new_wire(backend.url)
    run = wire.model()
    wire.forward_backward(run, 1)
    wire.optim_step(run, 2)
    wire.result(wire.post("save_weights_for_sampler", model_id=run, seq_id=3, sampling_session_seq_id=0))
    path = saved(wire, run=run, seq_id=4)
    kept = backend.folder / "checkpoints"
    deadline = time.monotonic() + 20
    while not (list(kept.glob(".runs/*")) and list(kept.glob(".samplers/*"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    deadline = time.monotonic() + 110
    while list(kept.glob(".runs/[!.]*")) or list(kept.glob(".samplers/[!.]*")):
        assert time.monotonic() < deadline
        time.sleep(1)
    assert wire.post("weights_info", tinker_path=path)["lora_rank"] == 8
    promise = wire.post("load_weights", session_id=wire.session(), model_seq_id=0, path=path, optimizer=True)
    assert "model_id" in wire.result(promise)
    assert "session ended" in wire.http.post("optim_step", json={"model_id": run, "seq_id": 5}).json()["detail"]
