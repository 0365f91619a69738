"""One conformance run against one server: its client, its base model and what several probes share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from . import oracle
from .client import HUGE, Failed, Refused, Run, Session, WireClient
from .effect import Effect
from .probe import PROBES, Outcome, Probe, Skipped, check
from .wire import Array, Example


class Suite:
    """What the probes work with. ``tolerance``: largest difference in nats that still counts as the same logprob."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        base_model: str | None = None,
        deadline: float = 300.0,
        tolerance: float = 0.02,
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.deadline = deadline
        self.tolerance = tolerance
        self.client = WireClient(base_url, api_key, deadline)
        self._base_model = base_model

    def close(self) -> None:
        """Closes the connections."""
        self.client.close()

    @cached_property
    def base_model(self) -> str:
        """The model that is probed: the named one, or the first that the server can train."""
        if self._base_model:
            return self._base_model
        models = self.client.get("get_server_capabilities")["supported_models"]
        for model in models:
            if model.get("model_name") and model.get("trainable") is not False:
                return str(model["model_name"])
        raise ValueError("the server names no trainable model; name one with --base-model")

    def session(self) -> Session:
        """A new session; use it as a block."""
        return self.client.session()

    @contextmanager
    def run(self, seed: int | None = 1, rank: int = 8) -> Iterator[Run]:
        """A run in a session of its own that is finished afterwards."""
        with self.session() as session:
            yield session.run(self.base_model, rank=rank, seed=seed)

    def fresh_name(self, stem: str) -> str:
        """A checkpoint name that no earlier conformance run used."""
        return f"{stem}-{secrets.token_hex(4)}"

    @cached_property
    def initial_weights(self) -> dict[str, Array] | None:
        """The adapter of a fresh run of seed 1, or None where the server gives no weights away."""
        try:
            with self.run() as run:
                return self.weights(run)
        except (Refused, Failed, Skipped):
            return None

    @cached_property
    def rate(self) -> dict[str, float]:
        """Settings of AdamW that make its first step a plain gradient step, visible and still linear.

        Seen in weights the step is the gradient itself. Seen in logprobs it is scaled so that they move by about 0.05
        nats a token: small enough to stay linear, large enough to stand clear of rounding.
        """
        if self.initial_weights is not None:
            return {"learning_rate": HUGE, "eps": HUGE}
        scale = 1e-3
        example = self.example()
        for _ in range(8):
            settings = {"learning_rate": scale * HUGE, "eps": HUGE}
            with self.run() as run:
                before = run.loss([example]).logprobs[0]
                run.step(**settings)
                moved = float((run.forward([example]).logprobs[0] - before).mean())
            if 0.02 <= moved <= 0.1:
                return settings
            scale *= float(np.clip(0.05 / moved, 0.02, 50.0)) if moved > 1e-7 else 50.0
        raise AssertionError(
            "no step size moves the logprobs measurably: the server seems to ignore eps or learning_rate of optim_step"
        )

    @staticmethod
    def example(seed: int = 0, length: int = 12, weight: float = 1.0) -> Example:
        """A datum of cross entropy over small token ids."""
        rng = np.random.default_rng(seed)
        tokens = rng.integers(3, 60, length + 1)
        return Example(
            tokens[:-1].tolist(),
            {"target_tokens": tokens[1:].astype("<i8"), "weights": np.full(length, weight, dtype="<f4")},
        )

    def effect(self, train: Callable[[Run], Any], *, stepped: bool = False) -> Effect:
        """What a plain gradient step does after ``train`` has filled the gradient of a fresh run, always of the same
        seed. ``stepped``: ``train`` takes the step itself, with the settings of ``rate``."""
        with self.run() as run:
            measured = [self.example(seed, 30) for seed in (0, 1, 2)]
            before = [] if self.initial_weights is not None else run.forward(measured).logprobs
            train(run)
            if not stepped:
                run.step(**self.rate)
            if self.initial_weights is not None:
                after = self.weights(run)
                moves = [(after[name] - value).ravel() for name, value in sorted(self.initial_weights.items())]
                return Effect(np.concatenate(moves), True)
            moves = [a - b for a, b in zip(run.forward(measured).logprobs, before, strict=True)]
            return Effect(np.concatenate(moves), False)

    @cached_property
    def plain_step(self) -> Effect:
        """The step on ``example()``, to compare with."""
        return self.effect(lambda run: run.loss([self.example()]))

    def weights(self, run: Run) -> dict[str, Array]:
        """The run's adapter as named float64 arrays. Raises Skipped where the server gives no weights away."""
        files = run.external(self.fresh_name("probe"))
        name = next((name for name in files if name.endswith("adapter_model.safetensors")), None)
        if name is None:
            raise Skipped(f"the exported files have no adapter_model.safetensors: {sorted(files)}")
        return oracle.read_safetensors(files[name])


def same(left: Array, right: Array, tolerance: float, what: str) -> str:
    """Checks that two arrays agree; the detail names the largest difference."""
    check(left.shape == right.shape, f"{what}: shapes {left.shape} and {right.shape} differ")
    difference = float(np.nanmax(np.abs(left - right))) if left.size else 0.0
    check(difference <= tolerance, f"{what}: differs by {difference:.3g}, more than {tolerance:.3g}")
    return f"{what}: differs by at most {difference:.2g}"


def run_probes(suite: Suite, only: list[str] | None = None) -> Iterator[Outcome]:
    """Runs the probes, one after another. ``only``: names or groups."""
    for chosen in select(only):
        yield chosen.run(suite)


def select(only: list[str] | None) -> list[Probe]:
    """The probes of those names or groups, all when there are none. Raises ValueError for an unknown name."""
    from . import probes  # noqa: F401  (fills the registry)

    if not only:
        return list(PROBES.values())
    known = set(PROBES) | {entry.group for entry in PROBES.values()}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ValueError(f"no such probe or group: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return [entry for entry in PROBES.values() if entry.name in only or entry.group in only]
