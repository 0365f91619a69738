"""Logprobs of the prompt in all their forms."""

from __future__ import annotations

import numpy as np

from ..probe import Skipped, check, probe
from ..suite import Suite, same
from ..wire import Array, Csr

TOKENS = [5, 9, 17, 33, 8, 41, 22]
_ONE = {"max_tokens": 1}


def _finite(values: Array | None, length: int, what: str) -> Array:
    check(values is not None, f"{what} is missing")
    assert values is not None
    check(len(values) == length, f"{what} has {len(values)} entries for {length} tokens")
    return values


@probe("prompt_logprobs has an entry a token, NaN at the first, equal to what the trainer computes")
def prompt_logprobs_equal_the_trainers(suite: Suite) -> str:
    datum = suite.example(2, 20)
    with suite.session() as session:
        run = session.run(suite.base_model)
        run.loss([datum])
        run.step(learning_rate=1e-2)
        trained = run.forward([datum]).logprobs[0]
        targets = np.asarray(datum.inputs["target_tokens"])
        scored = _finite(run.snapshot().score([*datum.tokens, int(targets[-1])]), 21, "prompt_logprobs")
    check(bool(np.isnan(scored[0])), f"position 0 has {scored[0]}, not NaN")
    return same(trained, scored[1:], suite.tolerance, "trainer against sampler after a step")


@probe("Prompt logprobs are raw, whatever the temperature of the sample")
def prompt_logprobs_ignore_temperature(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        cold = sampler.score(TOKENS)
        hot = sampler.sample(TOKENS, params={**_ONE, "temperature": 0.5}, prompt_logprobs=True).prompt_logprobs
    return same(cold[1:], _finite(hot, len(TOKENS), "prompt_logprobs")[1:], suite.tolerance / 10, "temperature 0.5")


@probe("prompt_logprobs_last_n scores the last n tokens and leaves NaN before them")
def last_n_limits_the_scores(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        everything = sampler.score(TOKENS)
        tail = sampler.sample(TOKENS, params=_ONE, prompt_logprobs=True, prompt_logprobs_last_n=3).prompt_logprobs
    tail = _finite(tail, len(TOKENS), "prompt_logprobs")
    check(bool(np.isnan(tail[:-3]).all()), f"entries before the last 3 are {tail[:-3]}, not NaN")
    return same(everything[-3:], tail[-3:], suite.tolerance / 10, "last 3")


@probe("topk_prompt_logprobs has a row a token; the mask fills the first; rows fall")
def prompt_top_k_has_a_row_a_token(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        output = sampler.sample(TOKENS, params=_ONE, prompt_logprobs=True, topk_prompt_logprobs=4)
    rows = output.topk_prompt_logprobs
    check(rows is not None, "topk_prompt_logprobs is missing")
    assert rows is not None and output.prompt_logprobs is not None
    check(rows.ids.shape == (len(TOKENS), 4), f"shape {rows.ids.shape}, not ({len(TOKENS)}, 4)")
    check(bool((rows.logprobs[0] <= -99999).all() and (rows.ids[0] == 0).all()), f"row 0 is {rows.logprobs[0]}")
    check(bool((np.diff(rows.logprobs[1:], axis=1) <= 1e-6).all()), "a row does not fall")
    for i in range(1, len(TOKENS)):
        check(
            float(output.prompt_logprobs[i]) <= float(rows.logprobs[i, 0]) + suite.tolerance,
            f"token {i} is more probable than the first of its row",
        )
    return f"{len(TOKENS)} rows of 4"


def _targets() -> Array:
    targets = np.full((len(TOKENS) - 1, 3), -1, dtype="<i8")
    targets[:, 0] = TOKENS[1:]
    targets[::2, 1] = 11
    return targets


def _target_reference(suite: Suite, answered: Array, plain: Array) -> str:
    check(answered.shape == _targets().shape, f"shape {answered.shape}, not {_targets().shape}")
    check(bool((answered[_targets() == -1] == 0).all()), "cells that were skipped (-1) are not 0.0")
    check(bool((answered[::2, 1] < 0).all()), "a wanted cell has no logprob")
    return same(answered[:, 0].astype(np.float64), plain[1:], suite.tolerance / 10, "column 0 against prompt logprobs")


@probe("target_prompt_logprobs scores chosen tokens at each position (dense)")
def chosen_targets_are_scored(suite: Suite) -> str:
    request = {"data": _targets().ravel().tolist(), "dtype": "int64", "shape": list(_targets().shape)}
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        output = sampler.sample(TOKENS, params=_ONE, prompt_logprobs=True, target_prompt_logprobs=request)
    check(output.target_prompt_logprobs is not None, "target_prompt_logprobs is missing")
    assert output.prompt_logprobs is not None
    if isinstance(output.target_prompt_logprobs, Csr):
        raise AssertionError("a dense request is answered in CSR")
    return _target_reference(suite, np.asarray(output.target_prompt_logprobs), output.prompt_logprobs)


@probe("target_prompt_logprobs takes CSR and answers in the same layout")
def chosen_targets_are_scored_in_csr(suite: Suite) -> str:
    request = Csr.from_dense(_targets(), pad=-1)
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        output = sampler.sample(TOKENS, params=_ONE, prompt_logprobs=True, target_prompt_logprobs=request.to_json())
    answer = output.target_prompt_logprobs
    if not isinstance(answer, Csr):
        raise AssertionError(f"a CSR request is answered with {type(answer).__name__}")
    check(answer.crow.tolist() == request.crow.tolist(), "the rows differ from the request's")
    check(answer.col.tolist() == request.col.tolist(), "the columns differ from the request's")
    dense = np.zeros(request.shape)
    dense[np.repeat(np.arange(request.shape[0]), np.diff(answer.crow)), answer.col] = answer.values
    assert output.prompt_logprobs is not None
    return _target_reference(suite, dense, output.prompt_logprobs)


@probe("prompt_alt_tokens_k gives k alternatives a position with their logprobs")
def alternatives_are_given(suite: Suite) -> str:
    with suite.session() as session:
        sampler = session.sampler(base_model=suite.base_model)
        output = sampler.sample(TOKENS, params=_ONE, prompt_logprobs=True, prompt_alt_tokens_k=2)
    if output.prompt_alt_tokens is None:
        raise Skipped("the server gives no alternatives")
    shape = (len(TOKENS) - 1, 2)
    check(output.prompt_alt_tokens.ids.shape == shape, f"tokens have shape {output.prompt_alt_tokens.ids.shape}")
    check(output.prompt_alt_tokens.logprobs.shape == shape, "logprobs have another shape than tokens")
    check(bool((output.prompt_alt_tokens.logprobs <= 1e-6).all()), "a logprob is positive")
    return f"{shape[0]} rows of {shape[1]}"
