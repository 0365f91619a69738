"""Saving, loading and keeping: what a checkpoint holds, what its name means, and how long it lives."""

from __future__ import annotations

import time

import numpy as np

from ..client import Failed, Refused, Run
from ..probe import Skipped, check, check_refused, probe
from ..suite import Suite, same
from ..wire import Array


def _train(suite: Suite, run: Run, steps: int) -> None:
    for seed in range(steps):
        run.loss([suite.example(seed, 10)])
        run.step(learning_rate=5e-3)


def _next_step(suite: Suite, run: Run) -> Array:
    run.loss([suite.example(9, 10)])
    run.step(learning_rate=5e-3)
    return np.asarray(run.forward([suite.example(9, 10)]).logprobs[0])


@probe("Resuming with the optimizer continues as if nothing happened")
def a_resume_with_optimizer_is_exact(suite: Suite) -> str:
    with suite.session() as session:
        run = session.run(suite.base_model)
        _train(suite, run, 3)
        path = run.save(suite.fresh_name("resume"))
        check(path.startswith(f"tinker://{run.id}/weights/"), f"the path is {path}")
        straight = _next_step(suite, run)
        resumed = _next_step(suite, session.run_from(path, optimizer=True))
    return same(straight, resumed, suite.tolerance / 10, "straight against resumed")


@probe("Resuming without the optimizer starts its moments afresh")
def a_resume_without_optimizer_is_fresh(suite: Suite) -> str:
    with suite.session() as session:
        run = session.run(suite.base_model)
        _train(suite, run, 3)
        path = run.save(suite.fresh_name("fresh"))
        weights_only = session.run_from(path, optimizer=False)
        same(
            run.forward([suite.example(9, 10)]).logprobs[0],
            weights_only.forward([suite.example(9, 10)]).logprobs[0],
            suite.tolerance / 10,
            "weights right after the load",
        )
        difference = float(np.abs(_next_step(suite, run) - _next_step(suite, weights_only)).max())
    check(difference > 1e-5, "the first step after a weights-only load equals one with the old moments")
    return f"next step differs by {difference:.2g} nats"


@probe("save_state of a name that exists ends at once in an answer, not in a 409 that clients repeat")
def a_name_that_exists_is_answered(suite: Suite) -> str:
    name = suite.fresh_name("twice")
    with suite.run() as run:
        run.save(name)
        try:
            run.save(name)
        except (Refused, Failed):
            return check_refused(lambda: run.save(name), "a name that exists")
    return "overwritten"


@probe("overwrite=true replaces a checkpoint")
def overwrite_replaces(suite: Suite) -> str:
    name = suite.fresh_name("over")
    with suite.session() as session:
        run = session.run(suite.base_model)
        run.save(name)
        _train(suite, run, 2)
        path = run.save(name, overwrite=True)
        now = run.forward([suite.example()]).logprobs[0]
        loaded = session.run_from(path, optimizer=False).forward([suite.example()]).logprobs[0]
    return same(now, loaded, suite.tolerance / 10, "run against the overwritten checkpoint")


@probe("A named sampler checkpoint has the documented path and samples as the run does")
def a_named_sampler_can_be_loaded(suite: Suite) -> str:
    datum = suite.example(2, 12)
    with suite.session() as session:
        run = session.run(suite.base_model)
        _train(suite, run, 2)
        name = suite.fresh_name("sampler")
        path = run.save_for_sampler(name)
        check(path == f"tinker://{run.id}/sampler_weights/{name}", f"the path is {path}")
        sampler = session.sampler(model_path=path)
        described = suite.client.get(f"samplers/{sampler.id}")
        check(described.get("model_path") == path, f"samplers/{sampler.id} names {described.get('model_path')}")
        targets = np.asarray(datum.inputs["target_tokens"])
        scored = sampler.score([*datum.tokens, int(targets[-1])])[1:]
        return same(run.forward([datum]).logprobs[0], scored, suite.tolerance, "run against its named sampler")


@probe("External weights can be downloaded and are the run's adapter")
def external_weights_can_be_downloaded(suite: Suite) -> str:
    with suite.run() as run:
        _train(suite, run, 1)
        try:
            files = run.external(suite.fresh_name("external"))
        except (Refused, Failed) as error:
            raise Skipped(f"no external weights: {error}") from error
    check("adapter_config.json" in files, f"no adapter_config.json among {sorted(files)}")
    check("adapter_model.safetensors" in files, f"no adapter_model.safetensors among {sorted(files)}")
    return ", ".join(f"{name} {len(body)} B" for name, body in sorted(files.items()))


@probe("Checkpoints are listed, described, published, and deleted by their two-part id")
def checkpoints_can_be_administered(suite: Suite) -> str:
    with suite.run() as run:
        path = run.save(suite.fresh_name("admin"))
        identity = path.removeprefix(f"tinker://{run.id}/")
        folder = f"training_runs/{run.id}/checkpoints"

        def listed() -> dict[str, dict[str, object]]:
            return {entry["checkpoint_id"]: entry for entry in suite.client.get(folder)["checkpoints"]}

        check(identity in listed(), f"{identity} is not among {sorted(listed())}")
        entry = listed()[identity]
        check(entry["tinker_path"] == path and entry["checkpoint_type"] == "training", f"listed as {entry}")
        facts = suite.client.post("weights_info", {"tinker_path": path})
        check(facts["is_lora"] is True and facts["lora_rank"] == 8, f"weights_info says {facts}")
        for method, public in (("POST", True), ("DELETE", False)):
            answer = suite.client.request(method, f"{folder}/{identity}/publish")
            check(answer.status_code < 300, f"{method} publish: HTTP {answer.status_code} {answer.text[:120]}")
            check(listed()[identity].get("public", False) is public, f"after {method} publish: {listed()[identity]}")
        answer = suite.client.request("DELETE", f"{folder}/{identity}")
        check(answer.status_code < 300, f"delete: HTTP {answer.status_code} {answer.text[:120]}")
        check(identity not in listed(), f"{identity} is still listed after its deletion")
        return check_refused(lambda: suite.client.post("weights_info", {"tinker_path": path}), "a deleted checkpoint")


@probe("ttl_seconds sets expires_at; null takes it away")
def a_ttl_is_kept(suite: Suite) -> str:
    with suite.run() as run:
        identity = run.save(suite.fresh_name("ttl"), ttl_seconds=7200).removeprefix(f"tinker://{run.id}/")
        folder = f"training_runs/{run.id}/checkpoints"

        def expiry() -> object:
            found = [c for c in suite.client.get(folder)["checkpoints"] if c["checkpoint_id"] == identity]
            return found[0].get("expires_at") if found else "gone"

        first = expiry()
        check(first not in (None, "gone"), f"expires_at is {first}")
        answer = suite.client.request("PUT", f"{folder}/{identity}/ttl", json={"ttl_seconds": None})
        check(answer.status_code < 300, f"PUT ttl: HTTP {answer.status_code} {answer.text[:120]}")
        check(expiry() is None, f"after ttl null expires_at is {expiry()}")
    return f"expires_at {first}"


@probe("A checkpoint whose ttl has passed is gone")
def an_expired_checkpoint_is_gone(suite: Suite) -> str:
    with suite.run() as run:
        try:
            path = run.save(suite.fresh_name("brief"), ttl_seconds=1)
        except (Refused, Failed) as error:
            raise Skipped(f"the server takes no ttl of one second: {error}") from error
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                suite.client.post("weights_info", {"tinker_path": path})
            except Refused as refusal:
                return f"HTTP {refusal.status} after its second"
            time.sleep(0.5)
    raise AssertionError("a checkpoint with a ttl of 1 s is still there after 20 s")


@probe("Loading a checkpoint that does not exist is the client's mistake")
def a_missing_checkpoint_is_refused(suite: Suite) -> str:
    with suite.session() as session:
        run = session.run(suite.base_model)
        missing = f"tinker://{run.id}/weights/no-such-name"
        check_refused(lambda: session.run_from(missing, optimizer=True), "a missing training checkpoint")
        missing = f"tinker://{run.id}/sampler_weights/no-such-name"
        return check_refused(lambda: session.sampler(model_path=missing).score([5, 6]), "a missing sampler checkpoint")


@probe("A name with slashes or dots cannot leave its run")
def names_cannot_leave_their_run(suite: Suite) -> str:
    with suite.run() as run:
        for name in ("../escape", "a/b", "..", "/tmp/x", "x\x00y"):
            check_refused(lambda name=name: run.save(name), f"the name {name!r}")  # type: ignore[misc]
    return "5 names refused"


@probe("copy_weights gives a checkpoint of its own, which outlives the source")
def a_copy_stands_alone(suite: Suite) -> str:
    with suite.session() as session:
        run = session.run(suite.base_model)
        _train(suite, run, 1)
        source = run.save(suite.fresh_name("copy"))
        try:
            copied = suite.client.post("copy_weights", {"source_path": source, "destination_project_id": "probe"})
        except Refused as error:
            raise Skipped(f"the server copies no weights: {error}") from error
        path = copied["tinker_path"]
        check(path != source, f"the copy has the path of its source, {path}")
        suite.client.request(
            "DELETE", f"training_runs/{run.id}/checkpoints/{source.removeprefix(f'tinker://{run.id}/')}"
        )
        now = run.forward([suite.example()]).logprobs[0]
        loaded = session.run_from(path, optimizer=True).forward([suite.example()]).logprobs[0]
    return same(now, loaded, suite.tolerance / 10, "run against the copy")
