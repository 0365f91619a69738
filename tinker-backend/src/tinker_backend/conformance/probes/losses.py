"""Every loss against its formula: the value from the returned logprobs, the gradient by a matching cross entropy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import oracle
from ..client import Failed, Refused
from ..effect import same_step
from ..probe import Skipped, check, check_refused, probe
from ..suite import Suite, same
from ..wire import Array, Csr, Example, LossOutput

Config = dict[str, float | str]
Formula = Callable[[Array, Array, Array], tuple[float, Array]]

_REDUCERS = {"mean", "sum", "min", "max", "slack", "hash2", "unique"}


def _policy_data(suite: Suite, logprobs: list[Array], mask: bool = False) -> list[Example]:
    """Ragged datums whose old logprobs lie around the present ones, so that clips bind at some tokens only."""
    rng = np.random.default_rng(7)
    data = []
    for seed, current in enumerate(logprobs):
        plain = suite.example(seed, len(current))
        inputs: dict[str, Array | Csr] = {
            "target_tokens": plain.inputs["target_tokens"],
            "logprobs": (current + rng.normal(0, 0.3, len(current))).astype("<f4"),
            "advantages": rng.normal(0, 1, len(current)).astype("<f4"),
        }
        if mask:
            inputs["sequence_ratio_mask"] = (np.arange(len(current)) % 3 != 0).astype("<f4")
        data.append(Example(plain.tokens, inputs))
    return data


def _policy_inputs(example: Example) -> tuple[Array, Array]:
    return tuple(np.asarray(example.inputs[key], dtype=np.float64) for key in ("logprobs", "advantages"))  # type: ignore[return-value]


def _against_formula(
    suite: Suite, loss_fn: str, config: Config, formula: Callable[[Example, Array], tuple[float, Array]], mask: bool
) -> str:
    plain = [suite.example(seed, 5 + 4 * seed) for seed in range(3)]
    with suite.run() as run:
        data = _policy_data(suite, run.forward(plain).logprobs, mask)
        try:
            output = run.loss(data, loss_fn, config)
        except (Refused, Failed) as error:
            if "unknown" in str(error).lower() or "not supported" in str(error).lower():
                raise Skipped(f"the server has no {loss_fn}: {error}") from error
            raise
    parts = [formula(example, lp) for example, lp in zip(data, output.logprobs, strict=True)]
    wanted = sum(value for value, _ in parts)
    off = abs(output.loss - wanted)
    check(off <= 1e-3 * max(1.0, abs(wanted)), f"loss:sum is {output.loss:.6f}, the formula says {wanted:.6f}")
    surrogate = [
        Example(
            example.tokens,
            {
                "target_tokens": example.inputs["target_tokens"],
                "weights": (-slope).astype("<f4"),
            },
        )
        for example, (_, slope) in zip(data, parts, strict=True)
    ]
    by_slope = suite.effect(lambda run: run.loss(surrogate))
    moved = suite.effect(lambda run: run.loss(data, loss_fn, config))
    return f"value off by {off:.1g}; " + same_step(moved, by_slope, "gradient against the formula's")


def _policy(formula: Formula) -> Callable[[Example, Array], tuple[float, Array]]:
    return lambda example, lp: formula(lp, *_policy_inputs(example))


@probe("cross_entropy is -sum(w * logprob), with negative weights too")
def cross_entropy_matches(suite: Suite) -> str:
    rng = np.random.default_rng(3)
    plain = suite.example(1, 14)
    weights = rng.normal(0, 1, 14).astype("<f4")
    with suite.run() as run:
        output = run.loss([Example(plain.tokens, {**plain.inputs, "weights": weights})])
    wanted, _ = oracle.cross_entropy(output.logprobs[0], weights.astype(np.float64))
    check(abs(output.loss - wanted) <= 1e-3 * max(1.0, abs(wanted)), f"loss:sum {output.loss}, formula {wanted}")
    return f"value off by {abs(output.loss - wanted):.1g}"


@probe("importance_sampling is -sum(r * A), value and gradient")
def importance_sampling_matches(suite: Suite) -> str:
    return _against_formula(suite, "importance_sampling", {}, _policy(oracle.importance_sampling), False)


@probe("ppo clips at the absolute ratios 0.8 and 1.2 unless told otherwise")
def ppo_matches(suite: Suite) -> str:
    return _against_formula(suite, "ppo", {}, _policy(oracle.ppo), False)


@probe("ppo takes clip_low_threshold and clip_high_threshold")
def ppo_thresholds_match(suite: Suite) -> str:
    config: Config = {"clip_low_threshold": 0.95, "clip_high_threshold": 1.6}
    return _against_formula(suite, "ppo", config, _policy(lambda lp, q, a: oracle.ppo(lp, q, a, 0.95, 1.6)), False)


@probe("cispo weighs the logprobs by the clipped ratio, without a gradient through it")
def cispo_matches(suite: Suite) -> str:
    config: Config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    return _against_formula(suite, "cispo", config, _policy(lambda lp, q, a: oracle.cispo(lp, q, a, 0.8, 1.2)), False)


@probe("dro is -sum(lp * A - beta / 2 * (lp - q)^2)")
def dro_matches(suite: Suite) -> str:
    return _against_formula(suite, "dro", {"beta": 0.3}, _policy(lambda lp, q, a: oracle.dro(lp, q, a, 0.3)), False)


@probe("gspo takes the ratio of the whole masked sequence")
def gspo_matches(suite: Suite) -> str:
    config: Config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}

    def formula(example: Example, lp: Array) -> tuple[float, Array]:
        mask = np.asarray(example.inputs["sequence_ratio_mask"])
        return oracle.gspo(lp, *_policy_inputs(example), mask, 0.9, 1.1)

    return _against_formula(suite, "gspo", config, formula, True)


def _soft_targets() -> tuple[list[int], Array, Array]:
    rng = np.random.default_rng(9)
    tokens = rng.integers(3, 60, 8)
    targets = np.stack([rng.permutation(np.arange(3, 60))[:4] for _ in range(8)]).astype("<i8")
    weights = rng.random((8, 4)).astype("<f4")
    weights[rng.random((8, 4)) < 0.4] = 0
    return tokens.tolist(), targets, weights


@probe("cross_entropy takes (N, K) targets and returns logprobs of that shape")
def soft_targets_match(suite: Suite) -> str:
    tokens, targets, weights = _soft_targets()
    with suite.run() as run:
        output = run.loss([Example(tokens, {"target_tokens": targets, "weights": weights})])
        single = run.forward(
            [Example(tokens, {"target_tokens": targets[:, 0], "weights": np.zeros(8, dtype="<f4")})]
        ).logprobs[0]
    logprobs = output.logprobs[0]
    check(logprobs.shape == (8, 4), f"logprobs have shape {logprobs.shape}, not (8, 4)")
    same(logprobs[:, 0], single, suite.tolerance / 10, "column 0 against plain targets")
    wanted, _ = oracle.cross_entropy(logprobs, weights.astype(np.float64))
    check(abs(output.loss - wanted) <= 1e-3 * max(1.0, abs(wanted)), f"loss:sum {output.loss}, formula {wanted}")
    return f"value off by {abs(output.loss - wanted):.1g}"


@probe("cross_entropy takes the same targets as CSR")
def sparse_targets_match(suite: Suite) -> str:
    tokens, targets, weights = _soft_targets()
    with suite.run() as run:
        dense: LossOutput = run.loss([Example(tokens, {"target_tokens": targets, "weights": weights})])
        used = np.where(weights != 0, targets, 0)
        sparse = run.loss(
            [Example(tokens, {"target_tokens": Csr.from_dense(used), "weights": Csr.from_dense(weights)})]
        )
    difference = abs(dense.loss - sparse.loss)
    check(difference <= 1e-3 * max(1.0, abs(dense.loss)), f"dense {dense.loss:.6f}, CSR {sparse.loss:.6f}")
    return f"dense against CSR off by {difference:.1g}"


@probe("Every metric is called name:reducer, and loss:sum is always there")
def metrics_name_their_reducer(suite: Suite) -> str:
    with suite.run() as run:
        data = _policy_data(suite, run.forward([suite.example()]).logprobs)
        found: set[str] = set()
        for output in (run.loss([suite.example()]), run.loss(data, "ppo"), run.forward([suite.example()])):
            check("loss:sum" in output.metrics, f"loss:sum is missing; metrics are {sorted(output.metrics)}")
            found |= set(output.metrics)
    for name in found:
        check(name.count(":") == 1, f"metric {name!r} has not exactly one colon, which breaks the client")
        check(name.split(":")[1] in _REDUCERS, f"metric {name!r} has a reducer that clients drop silently")
    return ", ".join(sorted(found))


@probe("stable_reinforce works or is refused in words, never silently replaced")
def stable_reinforce_is_served_or_refused(suite: Suite) -> str:
    with suite.run() as run:
        data = _policy_data(suite, run.forward([suite.example()]).logprobs)
        return check_refused(
            lambda: run.loss(data, "stable_reinforce"), "stable_reinforce without provenance of its samples"
        )
