"""Gradients are sums: over tokens, datums, chunks and calls, and nothing else touches them."""

from __future__ import annotations

import numpy as np

from ..client import Run
from ..effect import growth, no_step, same_step
from ..probe import check, probe
from ..suite import Suite, same


@probe("Weights times two double the gradient")
def weights_scale_the_gradient(suite: Suite) -> str:
    return growth(suite.effect(lambda run: run.loss([suite.example(weight=2.0)])), suite.plain_step, 2.0)


@probe("A batch sums its datums: the same datum twice doubles the gradient")
def a_batch_sums(suite: Suite) -> str:
    datum = suite.example()
    return growth(suite.effect(lambda run: run.loss([datum, datum])), suite.plain_step, 2.0)


@probe("Gradients accumulate over calls: two calls equal one call with both datums")
def calls_accumulate(suite: Suite) -> str:
    short, long = suite.example(1, 6), suite.example(2, 20)

    def separately(run: Run) -> None:
        run.loss([short])
        run.loss([long])

    together = suite.effect(lambda run: run.loss([short, long]))
    return same_step(suite.effect(separately), together, "two calls against one")


@probe("forward leaves no gradient behind")
def forward_leaves_no_gradient(suite: Suite) -> str:
    forwards = suite.effect(lambda run: run.forward([suite.example(3), suite.example()]))
    return no_step(forwards, suite.plain_step, "forward and a step")


@probe("optim_step without gradients succeeds and changes nothing")
def a_step_without_gradients_changes_nothing(suite: Suite) -> str:
    return no_step(suite.effect(lambda run: None), suite.plain_step, "an empty step")


@probe("optim_step consumes the gradient: the next step starts from zero")
def a_step_consumes_the_gradient(suite: Suite) -> str:
    settings = {**suite.rate, "beta1": 0.0}

    def twice(run: Run) -> None:
        run.loss([suite.example()])
        run.step(**settings)
        run.step(**settings)

    return same_step(suite.effect(twice, stepped=True), suite.plain_step, "a second, empty step")


@probe("A datum's logprobs do not depend on what shares its batch (padding)")
def padding_changes_nothing(suite: Suite) -> str:
    short, long = suite.example(4, 5), suite.example(5, 48)
    with suite.run() as run:
        alone = run.forward([short]).logprobs[0]
        beside = run.forward([long, short, long]).logprobs[1]
    return same(alone, beside, suite.tolerance / 10, "alone against beside longer ones")


@probe("Permuting the datums permutes the outputs")
def order_of_datums_is_kept(suite: Suite) -> str:
    data = [suite.example(seed, 4 + 3 * seed) for seed in range(5)]
    with suite.run() as run:
        forwards = run.forward(data).logprobs
        backwards = run.forward(data[::-1]).logprobs[::-1]
    for left, right in zip(forwards, backwards, strict=True):
        same(left, right, suite.tolerance / 10, "permuted batch")
    return "five ragged datums"


@probe("The LoRA seed is honoured: same seed, same weights; another seed, others")
def the_lora_seed_is_honoured(suite: Suite) -> str:
    datum = suite.example()

    def trained(seed: int) -> np.ndarray:
        with suite.run(seed=seed) as run:
            run.loss([datum])
            run.step(learning_rate=1e-2)
            return np.asarray(run.forward([datum]).logprobs[0])

    first, again, other = trained(11), trained(11), trained(12)
    same(first, again, 1e-3, "the same seed twice")
    distance = float(np.abs(first - other).max())
    check(distance > 1e-5, f"seeds 11 and 12 give the same weights (logprobs differ by {distance:.2g})")
    return f"same seed {float(np.abs(first - again).max()):.2g}, other seed {distance:.2g} nats"


@probe("A new run starts as the base model: its adapter adds nothing before the first step")
def a_new_run_is_the_base_model(suite: Suite) -> str:
    datum = suite.example()
    with suite.session() as session:
        run = session.run(suite.base_model, seed=5)
        trained = run.forward([datum]).logprobs[0]
        sampler = session.sampler(base_model=suite.base_model)
        scored = sampler.score([*datum.tokens, int(datum.inputs["target_tokens"][-1])])[1:]  # type: ignore[index]
    return same(trained, scored, suite.tolerance, "fresh run against the base model's sampler")
