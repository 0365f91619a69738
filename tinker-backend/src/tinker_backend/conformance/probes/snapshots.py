"""Samplers are pinned: training goes on without moving them, and they never move training."""

from __future__ import annotations

import numpy as np

from ..client import Run
from ..probe import check, probe
from ..suite import Suite, same

TOKENS = [5, 9, 17, 33, 8, 41, 22]


def _train(suite: Suite, run: Run, steps: int = 3) -> None:
    for _ in range(steps):
        run.loss([suite.example(2, 20)])
        run.step(learning_rate=1e-2)


@probe("A sampler stays as it was saved while training goes on")
def a_snapshot_is_pinned(suite: Suite) -> str:
    with suite.session() as session:
        run = session.run(suite.base_model)
        _train(suite, run, 1)
        old = run.snapshot()
        before = old.score(TOKENS)[1:]
        _train(suite, run)
        after = old.score(TOKENS)[1:]
        new = run.snapshot().score(TOKENS)[1:]
    drift = float(np.abs(new - before).max())
    check(drift > 1e-3, f"three steps moved the new sampler by {drift:.2g} nats only, so nothing is tested")
    return (
        same(before, after, suite.tolerance / 10, "old sampler before and after") + f"; the new one moved {drift:.2g}"
    )


@probe("Sampling an old snapshot does not rewind the training weights")
def sampling_leaves_training_alone(suite: Suite) -> str:
    datum = suite.example(2, 20)
    with suite.session() as session:
        run = session.run(suite.base_model)
        old = run.snapshot()
        _train(suite, run)
        before = run.forward([datum]).logprobs[0]
        old.sample(TOKENS, 2, {"max_tokens": 8})
        after = run.forward([datum]).logprobs[0]
    return same(before, after, suite.tolerance / 10, "trainer before and after sampling")


@probe("A snapshot holds exactly the steps that precede it by seq_id, though it is sent without waiting")
def a_snapshot_waits_for_its_turn(suite: Suite) -> str:
    datum = suite.example(2, 20)
    with suite.session() as session:
        run = session.run(suite.base_model)
        run.send_loss([datum])
        run.send_step(learning_rate=1e-2)
        sampler = run.snapshot()
        trained = run.forward([datum]).logprobs[0]
        targets = np.asarray(datum.inputs["target_tokens"])
        scored = sampler.score([*datum.tokens, int(targets[-1])])[1:]
    return same(trained, scored, suite.tolerance, "trainer against its snapshot")


@probe("Two runs over one base model do not see each other")
def runs_are_apart(suite: Suite) -> str:
    datum = suite.example(2, 20)
    with suite.session() as session:
        first, second = (session.run(suite.base_model) for _ in range(2))
        before = second.forward([datum]).logprobs[0]
        _train(suite, first)
        return same(before, second.forward([datum]).logprobs[0], suite.tolerance / 10, "the other run")
