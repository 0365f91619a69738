"""Operations of a run execute by ``seq_id``, whatever order they arrive in."""

from __future__ import annotations

import time

import numpy as np

from ..client import Failed, Refused, Run
from ..effect import no_step, same_step
from ..probe import check, probe
from ..suite import Suite
from ..wire import Example


def _mismatched(suite: Suite) -> list[Example]:
    plain = suite.example()
    return [Example(plain.tokens, {**plain.inputs, "weights": np.ones(3, dtype="<f4")})]


@probe("seq_id 2 that arrives first is promised at once and executes after seq_id 1")
def a_later_operation_waits_for_the_earlier(suite: Suite) -> str:
    def backwards(run: Run) -> None:
        first = run.next_seq()
        step = run.send_step(seq=run.next_seq(), **suite.rate)
        time.sleep(0.3)
        run.send_loss([suite.example()], seq=first).result()
        step.result()

    return same_step(suite.effect(backwards, stepped=True), suite.plain_step, "a step sent before its gradient")


@probe("Chunks in any order (2, 3, then 1) sum as one call does")
def chunks_arrive_in_any_order(suite: Suite) -> str:
    data = [suite.example(seed, 6 + seed) for seed in range(3)]

    def chunked(run: Run) -> None:
        numbers = [run.next_seq() for _ in data]
        late = [run.send_loss([data[i]], seq=numbers[i]) for i in (1, 2)]
        first = run.send_loss([data[0]], seq=numbers[0])
        for promise in (first, *late):
            promise.result()

    return same_step(suite.effect(chunked), suite.effect(lambda run: run.loss(data)), "chunks against one call")


@probe("Operations may be pipelined: forward_backward and optim_step are sent before either result is read")
def operations_may_be_pipelined(suite: Suite) -> str:
    datum = suite.example()
    with suite.run() as run:
        promises = []
        for _ in range(4):
            promises.append(run.send_loss([datum]))
            promises.append(run.send_step(learning_rate=1e-3))
        results = [promise.result() for promise in reversed(promises)][::-1]
        losses = [result.loss for result in results[::2]]
    check(all(a > b for a, b in zip(losses, losses[1:], strict=False)), f"losses do not fall in order: {losses}")
    return "losses " + ", ".join(f"{loss:.3f}" for loss in losses)


@probe("An operation that fails does not stop the next one")
def a_failed_operation_does_not_stop_the_next(suite: Suite) -> str:
    datum = suite.example()
    with suite.run() as run:
        for _ in range(2):
            try:
                run.send_loss(_mismatched(suite)).result()
            except (Refused, Failed):
                pass
            else:
                raise AssertionError("a datum with 12 tokens and 3 weights is accepted")
        loss = run.loss([datum]).loss
        run.step()
    return f"two refused calls, then a loss of {loss:.3f} and a step"


@probe("A refused datum leaves no gradient of its neighbours behind")
def a_refused_batch_leaves_no_gradient(suite: Suite) -> str:
    def refused(run: Run) -> None:
        try:
            run.send_loss([suite.example(), *_mismatched(suite)]).result()
        except (Refused, Failed):
            return
        raise AssertionError("a datum with 12 tokens and 3 weights is accepted")

    return no_step(suite.effect(refused), suite.plain_step, "a refused batch and a step")


@probe("A future that is not ready answers try_again after a long poll, not at once and not after 45 s")
def a_pending_future_is_a_long_poll(suite: Suite) -> str:
    with suite.run() as run:
        first = run.next_seq()
        parked = run.send_step(seq=run.next_seq())
        started = time.monotonic()
        answer = parked.poll(timeout=45.0)
        waited = time.monotonic() - started
        run.send_loss([suite.example()], seq=first).result()
        parked.result()
    check(answer.status_code in (200, 408), f"a pending future answers HTTP {answer.status_code}")
    check(answer.json().get("type") == "try_again", f"a pending future answers {answer.text[:200]}")
    check(waited >= 1.0, f"a pending future answers after {waited:.2f} s, which makes clients poll in a hot loop")
    return f"HTTP {answer.status_code} after {waited:.1f} s, queue_state {answer.json().get('queue_state')!r}"
