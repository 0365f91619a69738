"""A request that is sent again is the same request: nothing runs twice."""

from __future__ import annotations

from ..client import Promise, Run
from ..effect import same_step
from ..probe import check, probe
from ..suite import Suite, same


@probe("The same forward_backward seq_id twice counts once")
def a_repeated_gradient_counts_once(suite: Suite) -> str:
    datum = suite.example()

    def twice(run: Run) -> None:
        seq = run.next_seq()
        first = run.send_loss([datum], seq=seq)
        again = run.send_loss([datum], seq=seq)
        check(
            first.request_id == again.request_id, f"two futures for one seq_id: {first.request_id}, {again.request_id}"
        )
        same(first.result().logprobs[0], again.result().logprobs[0], 0.0, "both answers")
        run.send_loss([datum], seq=seq).result()

    return same_step(suite.effect(twice), suite.plain_step, "sent three times against once")


@probe("The same optim_step seq_id twice steps once")
def a_repeated_step_steps_once(suite: Suite) -> str:
    def twice(run: Run) -> None:
        run.loss([suite.example()])
        seq = run.next_seq()
        first = run.send_step(seq=seq, **suite.rate)
        again = run.send_step(seq=seq, **suite.rate)
        check(first.request_id == again.request_id, "two futures for one seq_id")
        first.result()
        again.result()

    return same_step(suite.effect(twice, stepped=True), suite.plain_step, "sent twice against once")


@probe("create_model with the same model_seq_id answers with the same run")
def a_repeated_create_is_one_run(suite: Suite) -> str:
    with suite.session() as session:
        body = session.create_body(suite.base_model)
        first, again = (suite.client.promise("create_model", body) for _ in range(2))
        check(first.request_id == again.request_id, "two futures for one model_seq_id")
        names = {promise.result()["model_id"] for promise in (first, again)}
        check(names == {f"{session.id}:train:0"}, f"model ids are {names}, clients compute {session.id}:train:0")
    return f"{names.pop()}"


@probe("An asample with the same seq_id answers with the same tokens, unseeded too")
def a_repeated_sample_is_one_sample(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        body = sampler.body([5, 9, 17], 2, {"max_tokens": 12})
        first, again = sampler.send(body), sampler.send(body)
        check(first.request_id == again.request_id, "two futures for one seq_id")
        left, right = first.result(), again.result()
        check(
            [s.tokens for s in left.sequences] == [s.tokens for s in right.sequences],
            "the same seq_id was sampled twice",
        )
    return "same future, same tokens"


@probe("create_sampling_session with the same number answers with the same sampler")
def a_repeated_sampler_is_one_sampler(suite: Suite) -> str:
    with suite.session() as session:
        body = session.sampler_body(base_model=suite.base_model)
        first, again = (suite.client.post("create_sampling_session", body)["sampling_session_id"] for _ in range(2))
    check(first == again, f"two samplers for one number: {first}, {again}")
    return str(first)


@probe("A result can be fetched again after it was delivered")
def a_result_can_be_fetched_again(suite: Suite) -> str:
    with suite.run() as run:
        promise = run.send_loss([suite.example()])
        return same(promise.result().logprobs[0], promise.result().logprobs[0], 0.0, "both fetches")


@probe("An unknown future is a 4xx that clients do not repeat for ever")
def an_unknown_future_is_refused(suite: Suite) -> str:
    answer = Promise(suite.client, "no-such-request", "json", {}).poll()
    check(400 <= answer.status_code < 500 and answer.status_code not in (408, 429), f"HTTP {answer.status_code}")
    return f"HTTP {answer.status_code}: {answer.text[:120]}"


@probe("The same save seq_id twice is one save, and does not count as a name that exists")
def a_repeated_save_is_one_save(suite: Suite) -> str:
    with suite.run() as run:
        body = {"model_id": run.id, "seq_id": run.next_seq(), "path": suite.fresh_name("again"), "overwrite": False}
        first, again = (suite.client.promise("save_weights", {**body, "type": "save_weights"}) for _ in range(2))
        check(first.request_id == again.request_id, "two futures for one seq_id")
        check(first.result()["path"] == again.result()["path"], "the two saves have different paths")
        run.step()
    return str(first.result()["path"])
