"""What is wrong is refused at the door, as the client's mistake, in words, and without harm to what follows."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ..client import Run
from ..probe import check, check_refused, probe
from ..suite import Suite
from ..wire import Array, Csr, Example

_FAR = 2_000_000_000


def _refused(suite: Suite, action: Callable[[Run], object], what: str) -> str:
    """Checks the refusal, that it comes soon, and that the run still works."""
    with suite.run() as run:
        started = time.monotonic()
        detail = check_refused(lambda: action(run), what)
        waited = time.monotonic() - started
        check(waited < 30, f"{what} is refused after {waited:.0f} s only")
        run.loss([suite.example()])
    return detail


def _changed(suite: Suite, **inputs: Array | Csr) -> list[Example]:
    plain = suite.example()
    return [Example(plain.tokens, {**plain.inputs, **inputs})]


def _policy(**inputs: Array | Csr) -> list[Example]:
    plain = Suite.example()
    base: dict[str, Array | Csr] = {
        "target_tokens": plain.inputs["target_tokens"],
        "logprobs": np.full(12, -3, dtype="<f4"),
        "advantages": np.ones(12, dtype="<f4"),
    }
    return [Example(plain.tokens, base | inputs)]


@probe("Tensors of another length than the input are refused")
def a_length_mismatch_is_refused(suite: Suite) -> str:
    return _refused(
        suite, lambda run: run.loss(_changed(suite, weights=np.ones(5, dtype="<f4"))), "5 weights for 12 tokens"
    )


@probe("A target beyond the vocabulary is refused")
def a_target_beyond_the_vocabulary_is_refused(suite: Suite) -> str:
    targets = np.full(12, _FAR, dtype="<i8")
    return _refused(suite, lambda run: run.loss(_changed(suite, target_tokens=targets)), f"target token {_FAR}")


@probe("An input token beyond the vocabulary is refused, and a negative one")
def an_input_beyond_the_vocabulary_is_refused(suite: Suite) -> str:
    plain = suite.example()
    for token in (_FAR, -1):
        data = [Example([token, *plain.tokens[1:]], plain.inputs)]
        detail = _refused(suite, lambda run, data=data: run.loss(data), f"input token {token}")  # type: ignore[misc]
    return detail


@probe("An unknown base model is refused")
def an_unknown_base_model_is_refused(suite: Suite) -> str:
    with suite.session() as session:
        check_refused(
            lambda: session.sampler(base_model="no/such-model").score([5, 6]), "a sampler of an unknown model"
        )
        return check_refused(lambda: session.run("no/such-model"), "a run of an unknown model")


@probe("A rank beyond the server's limit or below zero is refused")
def a_rank_too_big_is_refused(suite: Suite) -> str:
    with suite.session() as session:
        check_refused(lambda: session.run(suite.base_model, rank=-1), "rank -1")
        return check_refused(lambda: session.run(suite.base_model, rank=1_000_000), "rank 1000000")


@probe("An unknown loss is refused")
def an_unknown_loss_is_refused(suite: Suite) -> str:
    return _refused(suite, lambda run: run.loss([suite.example()], "no_such_loss"), "an unknown loss")


@probe("An unknown loss_fn_config key is refused, not ignored")
def an_unknown_config_key_is_refused(suite: Suite) -> str:
    return _refused(suite, lambda run: run.loss(_policy(), "ppo", {"clip_lo": 0.8}), "config key clip_lo")


@probe("An unknown loss input is refused, not ignored")
def an_unknown_input_is_refused(suite: Suite) -> str:
    data = _policy(surprise=np.ones(12, dtype="<f4"))
    return _refused(suite, lambda run: run.loss(data, "ppo"), "input 'surprise'")


@probe("A loss without its required inputs is refused")
def a_missing_input_is_refused(suite: Suite) -> str:
    plain = suite.example()
    data = [Example(plain.tokens, {"target_tokens": plain.inputs["target_tokens"]})]
    return _refused(suite, lambda run: run.loss(data, "ppo"), "ppo without logprobs and advantages")


@probe("NaN and infinity in loss inputs are refused")
def numbers_that_are_none_are_refused(suite: Suite) -> str:
    for value in (np.nan, np.inf):
        data = _policy(advantages=np.full(12, value, dtype="<f4"))
        detail = _refused(suite, lambda run, data=data: run.loss(data, "ppo"), f"advantages of {value}")  # type: ignore[misc]
    return detail


@probe("An empty batch and an empty datum are refused")
def nothing_is_refused(suite: Suite) -> str:
    _refused(suite, lambda run: run.loss([]), "a batch without datums")
    empty = Example([], {"target_tokens": np.zeros(0, dtype="<i8"), "weights": np.zeros(0, dtype="<f4")})
    return _refused(suite, lambda run: run.loss([empty]), "a datum without tokens")


@probe("A sequence longer than the context is refused")
def a_sequence_too_long_is_refused(suite: Suite) -> str:
    length = 2_000_000
    data = Example(
        [5] * length, {"target_tokens": np.full(length, 5, dtype="<i8"), "weights": np.ones(length, dtype="<f4")}
    )
    return _refused(suite, lambda run: run.loss([data]), f"{length} tokens")


@probe("Optimizer settings out of range are refused")
def an_impossible_optimizer_setting_is_refused(suite: Suite) -> str:
    for name, setting in (("beta1", 1.5), ("beta2", -0.1), ("learning_rate", -1.0)):
        detail = _refused(suite, lambda run, s={name: setting}: run.step(**s), f"{name} {setting}")  # type: ignore[misc]
    return detail


@probe("Sampling settings out of range are refused")
def an_impossible_sampling_setting_is_refused(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        for params in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"max_tokens": -1}, {"top_k": -5}):
            full = {"max_tokens": 4, **params}
            detail = check_refused(lambda full=full: sampler.sample([5, 6], params=full), f"{params}")  # type: ignore[misc]
        check_refused(lambda: sampler.sample([5, 6], 0), "num_samples 0")
        check_refused(lambda: sampler.sample([]), "an empty prompt")
        check_refused(lambda: sampler.sample([5, _FAR]), f"prompt token {_FAR}")
        sampler.score([5, 6])
    return detail


@probe("An operation on a run that does not exist is refused")
def an_unknown_run_is_refused(suite: Suite) -> str:
    with suite.session() as session:
        ghost = Run(session, f"{session.id}:train:77")
        check_refused(lambda: ghost.loss([suite.example()]), "forward_backward of an unknown run")
        return check_refused(lambda: ghost.step(), "optim_step of an unknown run")
