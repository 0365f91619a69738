"""Other ways to results: many futures at once, samplers that follow their run, tokens in place of keys."""

from __future__ import annotations

import numpy as np

from ..client import Failed, Refused, Sampler, WireClient
from ..probe import Skipped, check, probe
from ..suite import Suite, same

TOKENS = [5, 9, 17, 33, 8, 41, 22]


@probe("retrieve_futures names the samples that are finished, once each, and its cursor moves on")
def finished_samples_are_announced(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        target = {"type": "sampling_session", "sampling_session_id": sampler.id, "cloned_sampler_id": 0}
        ask = {"target": target, "prev_cursor": 0, "retrieved_request_ids": []}
        try:
            suite.client.post("retrieve_futures", {**ask, "timeout": 0})
        except Refused as error:
            raise Skipped(f"the server has no retrieve_futures: {error}") from error
        wanted = {sampler.send(sampler.body(TOKENS, 1, {"max_tokens": 2})).request_id for _ in range(3)}
        seen: list[str] = []
        cursor = 0
        for _ in range(20):
            page = suite.client.post("retrieve_futures", {**ask, "prev_cursor": cursor})
            check(page["cursor"] >= cursor, f"the cursor went back from {cursor} to {page['cursor']}")
            cursor = page["cursor"]
            for completion in page["completions"]:
                check(completion["state"] == "finished", f"{completion}")
                seen.append(completion["request_id"])
            if wanted <= set(seen):
                break
    check(sorted(seen) == sorted(wanted), f"announced {seen}, sampled {sorted(wanted)}")
    return "3 samples, each announced once"


@probe("An inflight sampler follows its run: earlier ones see weights of later saves")
def inflight_samplers_follow_their_run(suite: Suite) -> str:
    with suite.session() as session:
        run = session.run(suite.base_model)

        def save() -> Sampler:
            body = {"model_id": run.id, "seq_id": run.next_seq(), "kind": "inflight"}
            body |= {"sampling_session_seq_id": session.next_sampler(), "type": "save_weights_for_sampler"}
            return Sampler(
                suite.client, suite.client.promise("save_weights_for_sampler", body).result()["sampling_session_id"]
            )

        try:
            first = save()
        except (Refused, Failed) as error:
            raise Skipped(f"the server has no inflight samplers: {error}") from error
        before = first.score(TOKENS)[1:]
        for _ in range(3):
            run.loss([suite.example(2, 20)])
            run.step(learning_rate=1e-2)
        second = save()
        after = first.score(TOKENS)[1:]
        drift = float(np.abs(after - before).max())
        check(drift > 1e-3, f"the first sampler moved by {drift:.2g} nats: it does not follow its run")
        return same(after, second.score(TOKENS)[1:], suite.tolerance / 10, "first against second sampler")


@probe("Where tokens are exchanged, a token opens what its key opens")
def a_token_stands_for_its_key(suite: Suite) -> str:
    flags = suite.client.post("client/config", {"sdk_version": "0.38.0"})
    if not flags.get("pjwt_auth_enabled"):
        raise Skipped("the server asks for no token exchange")
    token = suite.client.post("auth/token", {})["jwt"]
    client = WireClient(suite.base_url, token, suite.deadline)
    try:
        return f"{len(client.get('get_server_capabilities')['supported_models'])} models with a token"
    finally:
        client.close()


@probe("Numbered clones of a sampling client are told apart")
def clones_are_numbered(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        body = {"sampling_session_id": sampler.id, "type": "join_sampling_session"}
        try:
            numbers = [suite.client.post("join_sampling_session", body)["client_counter"] for _ in range(3)]
        except Refused as error:
            raise Skipped(f"the server numbers no clones: {error}") from error
    check(len(set(numbers)) == 3 and min(numbers) >= 1, f"the numbers are {numbers}; 0 is the original")
    return f"{numbers}"
