"""AdamW, number by number where the server gives weights away, and by the logprobs where it does not."""

from __future__ import annotations

import numpy as np

from .. import oracle
from ..client import HUGE, Run
from ..effect import no_step
from ..probe import Skipped, check, probe
from ..suite import Suite
from ..wire import Array, Example

Weights = dict[str, Array]


def _export(suite: Suite) -> tuple[Weights, list[Example]]:
    """The adapter of a fresh run, and the datums that the AdamW probes train on."""
    if suite.initial_weights is None:
        raise Skipped("the server gives no weights away, so numbers cannot be compared")
    return suite.initial_weights, [suite.example(1, 16), suite.example(2, 9)]


def _gradient(suite: Suite, data: list[Example], before: Weights) -> Weights:
    """The gradient of cross entropy at the initial weights, read off one plain gradient step."""
    with suite.run() as run:
        run.loss(data)
        run.step(learning_rate=HUGE, eps=HUGE)
        after = suite.weights(run)
    return {name: before[name] - after[name] for name in before}


def _compare(after: Weights, wanted: Weights, before: Weights, what: str) -> str:
    """Compares the moves of all weights, as a share of the largest move."""
    largest = max(float(np.abs(wanted[name] - before[name]).max()) for name in before)
    check(largest > 0, f"{what}: nothing should move, so nothing is tested")
    # Entries with a vanishing gradient have an arbitrary sign under a tiny eps; the share of those that differ is bounded.
    moves = np.concatenate([((after[name] - wanted[name]) / largest).ravel() for name in before])
    share = float((np.abs(moves) > 0.02).mean())
    check(share < 0.01, f"{what}: {share:.1%} of the weights moved otherwise than AdamW says")
    return f"{what}: median error {float(np.median(np.abs(moves))):.1g} of the largest move"


@probe("AdamW's first step, with bias correction, equals the reference arithmetic")
def adamw_step_matches(suite: Suite) -> str:
    before, data = _export(suite)
    gradient = _gradient(suite, data, before)
    with suite.run() as run:
        run.loss(data)
        run.step(learning_rate=1e-3, eps=1e-4)
        after = suite.weights(run)
    return _compare(after, oracle.AdamW().step(before, gradient, 1e-3, eps=1e-4), before, "first step")


@probe("AdamW's moments carry over: a second step equals the reference arithmetic")
def adamw_moments_match(suite: Suite) -> str:
    before, data = _export(suite)
    first, second = _gradient(suite, data[:1], before), _gradient(suite, data[1:], before)
    with suite.run() as run:
        run.loss(data[:1])
        run.step(learning_rate=0.0, eps=1e-4)  # moves no weight, fills the moments
        run.loss(data[1:])
        run.step(learning_rate=1e-3, eps=1e-4)
        after = suite.weights(run)
    adam = oracle.AdamW()
    adam.step(before, first, 0.0, eps=1e-4)
    return _compare(after, adam.step(before, second, 1e-3, eps=1e-4), before, "second step")


@probe("weight_decay is decoupled: a step without a gradient shrinks the weights by rate times decay")
def weight_decay_is_decoupled(suite: Suite) -> str:
    before, data = _export(suite)
    gradient = _gradient(suite, data, before)
    with suite.run() as run:
        run.loss(data)
        run.step(learning_rate=1e-2, eps=1e-4, weight_decay=1.0)
        after = suite.weights(run)
    wanted = oracle.AdamW().step(before, gradient, 1e-2, eps=1e-4, weight_decay=1.0)
    return _compare(after, wanted, before, "decayed step")


@probe("grad_clip_norm scales the whole gradient to that L2 norm; 0 leaves it alone")
def grad_clip_norm_clips(suite: Suite) -> str:
    before, data = _export(suite)
    gradient = _gradient(suite, data, before)
    norm = float(np.sqrt(sum((part**2).sum() for part in gradient.values())))
    with suite.run() as run:
        run.loss(data)
        run.step(learning_rate=HUGE, eps=HUGE, grad_clip_norm=norm / 3)
        after = suite.weights(run)
    moved = float(np.sqrt(sum(((after[name] - before[name]) ** 2).sum() for name in before)))
    check(
        abs(moved / (norm / 3) - 1) < 0.02, f"a gradient of norm {norm:.4g} clipped to {norm / 3:.4g} has {moved:.4g}"
    )
    return f"norm {norm:.4g} clipped to {norm / 3:.4g}: measured {moved:.4g}"


@probe("grad_clip_norm is honoured: a step clipped to almost nothing moves almost nothing")
def a_clipped_step_is_shorter(suite: Suite) -> str:
    def clipped(run: Run) -> None:
        run.loss([suite.example()])
        run.step(**suite.rate, grad_clip_norm=1e-6)

    return no_step(suite.effect(clipped, stepped=True), suite.plain_step, "a step clipped to a norm of 1e-6")


@probe("eps and learning_rate are taken from every step")
def eps_damps_the_step(suite: Suite) -> str:
    datum = suite.example()

    def move(**adam: float) -> float:
        with suite.run() as run:
            before = run.loss([datum]).logprobs[0]
            run.step(**adam)
            return float(np.abs(run.forward([datum]).logprobs[0] - before).mean())

    sharp, damped, still = move(learning_rate=1e-3), move(learning_rate=1e-3, eps=1e6), move(learning_rate=0.0)
    check(sharp > 1e-5, f"a step of rate 1e-3 moves nothing ({sharp:.2g} nats)")
    check(damped < sharp / 10, f"eps 1e6 does not damp the step: {damped:.3g} against {sharp:.3g} nats")
    check(still < 1e-5, f"a learning rate of 0 moves the logprobs by {still:.3g} nats")
    return f"{sharp:.2g} nats, with eps 1e6 {damped:.1g}, with rate 0 {still:.1g}"


@probe("A step on a datum raises its likelihood")
def training_learns(suite: Suite) -> str:
    datum = suite.example(6)
    with suite.run() as run:
        losses = []
        for _ in range(5):
            losses.append(run.loss([datum]).loss)
            run.step(learning_rate=2e-3)
        losses.append(run.forward([datum]).loss)
    check(losses[-1] < losses[0], f"loss went from {losses[0]:.3f} to {losses[-1]:.3f} in five steps")
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f} in five steps"
