"""Nothing is lost: kill -9 of the runtime, of the server, of both; operations that kill; runtimes that cannot start."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest


def train(wire: Any, model: str, first: int, steps: int) -> list[dict[str, Any]]:
    """Pipelined steps; the promises in order."""
    promises = []
    for step in range(steps):
        promises.append(wire.forward_backward(model, first + 2 * step, tokens=[step + 1, step + 2, step + 3]))
        promises.append(wire.optim_step(model, first + 2 * step + 1))
    return promises


def undisturbed(make_backend: Callable[..., Any], new_wire: Any, steps: int) -> list[Any]:
    """The results of the same steps on a server that is left alone."""
    backend = make_backend(name="undisturbed")
    wire = new_wire(backend.url)
    model = wire.model()
    return [wire.result(promise) for promise in train(wire, model, 1, steps)]


def test_killing_the_runtime_amid_a_forward_backward_costs_a_pause_only(
    make_backend: Callable[..., Any], new_wire: Any
) -> None:
    expected = undisturbed(make_backend, new_wire, 6)
    backend = make_backend({"delay_seconds": 0.1})
    wire = new_wire(backend.url)
    promises = train(wire, wire.model(), 1, 6)
    for _ in range(2):
        time.sleep(0.35)
        backend.kill_runtime()
    assert [wire.result(promise) for promise in promises] == expected


def test_killing_the_server_keeps_sessions_runs_futures_and_checkpoints(
    make_backend: Callable[..., Any], new_wire: Any
) -> None:
    expected = undisturbed(make_backend, new_wire, 6)
    backend = make_backend({"delay_seconds": 0.1})
    wire = new_wire(backend.url)
    session = wire.session()
    model = wire.model(session)
    promises = train(wire, model, 1, 3)
    save = wire.post("save_weights", model_id=model, seq_id=7, path="mid")
    time.sleep(0.25)
    backend.kill()
    backend.start()
    assert [wire.result(promise) for promise in promises] == expected[:6]
    assert wire.result(save)["path"].endswith("/weights/mid")
    rest = train(wire, model, 8, 3)
    backend.kill()
    backend.start()
    results = [wire.result(promise) for promise in rest]
    assert [r["metrics"]["steps"] for r in results[1::2]] == [4, 5, 6]
    wire.post("session_heartbeat", session_id=session)
    listed = wire.http.get(f"training_runs/{model}/checkpoints").json()["checkpoints"]
    assert [c["checkpoint_id"] for c in listed] == ["weights/mid"]
    # A promise that was given twice is the same one, also across the restart.
    assert wire.optim_step(model, 13) == rest[5]


def test_samplers_survive_the_death_of_runtime_and_server(make_backend: Callable[..., Any], new_wire: Any) -> None:
    backend = make_backend()
    wire = new_wire(backend.url)
    model = wire.model()
    for promise in train(wire, model, 1, 2):
        wire.result(promise)
    unnamed = wire.result(wire.post("save_weights_for_sampler", model_id=model, seq_id=5, sampling_session_seq_id=0))
    for promise in train(wire, model, 6, 2):
        wire.result(promise)

    def sample(seq_id: int) -> Any:
        body = {"sampling_session_id": unnamed["sampling_session_id"], "seq_id": seq_id, "prompt": PROMPT}
        return wire.result(wire.post("asample", **body, sampling_params={"max_tokens": 4, "seed": 1}))

    first = sample(0)
    backend.kill_runtime()
    assert sample(1)["sequences"] == first["sequences"]
    backend.kill()
    backend.start()
    assert sample(2)["sequences"] == first["sequences"]


PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}


def test_a_sample_under_way_survives_kills_of_both_processes(make_backend: Callable[..., Any], new_wire: Any) -> None:
    backend = make_backend({"sample_seconds": 1.0})
    wire = new_wire(backend.url)
    session = wire.session()
    sampler = wire.post(
        "create_sampling_session", session_id=session, sampling_session_seq_id=0, base_model="fake-model"
    )
    promises = [
        wire.post("asample", sampling_session_id=sampler["sampling_session_id"], seq_id=i, prompt=PROMPT)
        for i in range(5)
    ]
    backend.kill_runtime()
    time.sleep(0.5)
    backend.kill()
    backend.start()
    assert all(len(wire.result(promise)["sequences"]) == 1 for promise in promises)


def test_an_operation_that_kills_the_runtime_fails_with_an_error_that_says_so(
    make_backend: Callable[..., Any], new_wire: Any
) -> None:
    backend = make_backend({"die_on_token": 666})
    wire = new_wire(backend.url)
    good, bad = wire.model(), wire.model()
    poison = wire.forward_backward(bad, 1, tokens=[1, 666, 2])
    after = wire.optim_step(bad, 2)
    others = train(wire, good, 1, 3)
    failure = wire.result(poison)
    assert failure["category"] == "server" and "died 3 times" in failure["error"] and "SIGSEGV" in failure["error"]
    assert wire.result(after)["metrics"]["steps"] == 1
    assert [wire.result(promise)["metrics"]["steps"] for promise in others[1::2]] == [1, 2, 3]


def test_a_sample_that_kills_the_runtime_fails_alone(make_backend: Callable[..., Any], new_wire: Any) -> None:
    backend = make_backend({"die_on_token": 666, "sample_seconds": 0.2})
    wire = new_wire(backend.url)
    sampler = wire.post(
        "create_sampling_session", session_id=wire.session(), sampling_session_seq_id=0, base_model="fake-model"
    )
    prompts = [[1, 2], [666, 1], [3, 4], [5]]
    promises = [
        wire.post(
            "asample",
            sampling_session_id=sampler["sampling_session_id"],
            seq_id=i,
            prompt={"chunks": [{"type": "encoded_text", "tokens": tokens}]},
        )
        for i, tokens in enumerate(prompts)
    ]
    results = [wire.result(promise) for promise in promises]
    assert "died" in results[1]["error"]
    assert all("sequences" in results[i] for i in (0, 2, 3))


def test_a_runtime_that_no_longer_starts_fails_operations_instead_of_hanging(
    make_backend: Callable[..., Any], new_wire: Any
) -> None:
    backend = make_backend()
    wire = new_wire(backend.url)
    model = wire.model()
    (backend.folder / "engine.yaml").write_text("fail_start: the driver is gone\n")
    backend.kill_runtime()
    failure = wire.result(wire.forward_backward(model, 1))
    assert "cannot start" in failure["error"] and "the driver is gone" in failure["error"]


def test_a_server_whose_runtime_never_starts_exits_with_the_reason(
    make_backend: Callable[..., Any], tmp_path: Path
) -> None:
    log = tmp_path / "server" / "logs" / "runtime.log"
    log.parent.mkdir(parents=True)
    log.write_text("what an earlier start said\n")
    with pytest.raises(RuntimeError, match="no such device") as failed:
        make_backend({"fail_start": "no such device"})
    assert "what an earlier start said" not in str(failed.value)


def test_a_reason_that_the_runtime_gives_itself_is_the_whole_message(
    make_backend: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError) as failed:
        make_backend({"fail_hello": "pretrain '/nowhere': no such folder"})
    last = str(failed.value).strip().splitlines()[-1]
    log = tmp_path / "server" / "logs" / "runtime.log"
    assert last == f"Error: the runtime cannot start: pretrain '/nowhere': no such folder (log: {log})"


def test_a_runtime_that_is_not_ready_in_time_is_said_to_be_late(make_backend: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match=r"not ready within runtime.start_timeout_seconds = 0.5 s"):
        make_backend({"slow_hello": 5}, runtime={"start_timeout_seconds": 0.5})


def test_a_full_disk_pauses_the_client_and_loses_nothing(make_backend: Callable[..., Any], new_wire: Any) -> None:
    backend = make_backend()
    wire = new_wire(backend.url)
    model = wire.model()
    assert backend.process is not None
    import resource

    # A file size limit makes every write to the ledger fail as a full disk does.
    size = sum(p.stat().st_size for p in backend.folder.glob("ledger.db*"))
    resource.prlimit(backend.process.pid, resource.RLIMIT_FSIZE, (max(size // 4, 1), resource.RLIM_INFINITY))
    refused = 0
    for _ in range(3):
        answer = wire.http.post("optim_step", json={"model_id": model, "seq_id": 1, "adam_params": {}})
        refused += answer.status_code == 503 and "disk" in answer.text
    assert refused == 3
    resource.prlimit(backend.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert wire.result(wire.optim_step(model, 1))["metrics"]["steps"] == 1


def test_no_process_is_left_behind_when_the_server_is_killed(make_backend: Callable[..., Any], new_wire: Any) -> None:
    backend = make_backend()
    pid = backend.runtime_pid()
    backend.kill()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"runtime {pid} outlived its server")


def train_and_sample(wire: Any, model: str, steps: int) -> tuple[list[Any], list[Any], int]:
    """Results of all training requests, sequences of all samples, and the next seq_id; waits as little as it can."""
    promises, samples = [], []
    seq_id = 1
    for step in range(steps):
        tokens = [step + 1, step + 2, step + 3]
        promises.append(persistent(partial(wire.forward_backward, model, seq_id, tokens=tokens)))
        promises.append(persistent(partial(wire.optim_step, model, seq_id + 1)))
        seq_id += 2
        if step % 4 == 3:
            publish = partial(wire.post, "save_weights_for_sampler", model_id=model, seq_id=seq_id)
            published = wire.result(persistent(partial(publish, sampling_session_seq_id=step)), deadline=300)
            seq_id += 1
            sampler = published["sampling_session_id"]
            for number in range(3):
                body = {"sampling_session_id": sampler, "seq_id": number, "prompt": PROMPT}
                params = {"max_tokens": 8, "seed": step}
                samples.append(persistent(partial(wire.post, "asample", **body, sampling_params=params)))
    results = [wire.result(promise, deadline=300) for promise in promises]
    return results, [wire.result(sample, deadline=300)["sequences"] for sample in samples], seq_id


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_random_kills_leave_the_numbers_as_they_were(make_backend: Callable[..., Any], new_wire: Any) -> None:
    steps, kills = 20, 50
    quiet = new_wire(make_backend(name="undisturbed").url)
    expected = train_and_sample(quiet, quiet.model(), steps)
    backend = make_backend({"delay_seconds": 0.15})
    wire = new_wire(backend.url)
    model = wire.model()
    chance = random.Random(7)
    finished = threading.Event()
    done = amid = 0
    training = True

    def killer() -> None:
        nonlocal done, amid
        while done < kills and not finished.is_set():
            time.sleep(chance.uniform(0.05, 1.2))
            if chance.random() < 0.3:
                backend.kill()
                backend.start()
            else:
                try:
                    pid = httpx.get(f"{backend.url}/api/v1/status", timeout=5).json()["runtime"]["pid"]
                    if not pid:
                        continue
                    os.kill(pid, signal.SIGKILL)
                except (httpx.HTTPError, ProcessLookupError):
                    continue
            done += 1
            amid += training

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        outcome = train_and_sample(wire, model, steps)
        training = False
        while thread.is_alive() and done < kills:
            time.sleep(0.2)
    finally:
        finished.set()
        thread.join()
    print(f"{done} kills, {amid} of them while the run trained and sampled")
    assert outcome == expected
    assert done == kills and amid >= kills / 2
    saved = persistent(lambda: wire.post("save_weights", model_id=model, seq_id=outcome[2], path="end"))
    assert wire.result(saved)["path"].endswith("/weights/end")


def persistent(post: Callable[[], Any], deadline: float = 120) -> Any:
    """Repeats a POST as clients do when the connection is lost."""
    end = time.monotonic() + deadline
    while True:
        try:
            return post()
        except (httpx.TransportError, AssertionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
