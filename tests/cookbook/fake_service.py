"""A Tinker service in memory, for tests of training loops: a bigram softmax policy that really learns.

The model is a table of logits [vocab, vocab]; losses and Adam are computed with numpy, so that a loop's effect on the
weights, and a resumed run's equality with an uninterrupted one, can be checked without a server.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tinker

VOCAB = 1600


class Future:
    """Awaitable like the SDK's futures; the work is done at call time."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self._value, self._error = value, error

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        return self.result()

    def result(self, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


@dataclass
class State:
    logits: np.ndarray = field(default_factory=lambda: np.zeros((VOCAB, VOCAB), dtype=np.float64))
    m: np.ndarray = field(default_factory=lambda: np.zeros((VOCAB, VOCAB)))
    v: np.ndarray = field(default_factory=lambda: np.zeros((VOCAB, VOCAB)))
    step: int = 0

    def copy(self) -> State:
        return State(self.logits.copy(), self.m.copy(), self.v.copy(), self.step)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def tokens_of(model_input: Any) -> list[int]:
    return [int(token) for chunk in model_input.chunks for token in chunk.tokens]


@dataclass
class Response:
    sequences: list[Any]
    prompt_logprobs: list[float | None] | None = None
    topk_prompt_logprobs: list[Any] | None = None
    prompt_cache_hit_tokens: int = 0


@dataclass
class Sequence:
    tokens: list[int]
    logprobs: list[float]
    stop_reason: str
    sequence_id: str | None = None


class SamplingClient:
    def __init__(self, service: Service, logits: np.ndarray) -> None:
        self.service, self.logits = service, logits.copy()

    def sample(
        self,
        prompt: Any,
        num_samples: int,
        sampling_params: Any,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        **_: Any,
    ) -> Future:
        self.service.calls.append("sample")
        if self.service.sample_error is not None:
            error = self.service.sample_error()
            if error is not None:
                return Future(error=error)
        ids = tokens_of(prompt)
        seed = sampling_params.seed
        if seed is None:
            self.service.unseeded += 1
            seed = self.service.unseeded
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(repr((ids, seed)).encode()).digest()[:8], "big"))
        stops = sampling_params.stop or []
        stop_ids = [s for s in stops if isinstance(s, int)] if not isinstance(stops, str) else []
        sequences = []
        for _index in range(num_samples):
            out: list[int] = []
            logprobs: list[float] = []
            previous, reason = ids[-1] if ids else 0, "length"
            for _step in range(sampling_params.max_tokens):
                lp = log_softmax(self.logits[previous])
                allowed = self.service.allowed if self.service.allowed is not None else np.arange(VOCAB)
                p = np.exp(lp[allowed])
                token = int(rng.choice(allowed, p=p / p.sum()))
                out.append(token)
                logprobs.append(float(lp[token]))
                previous = token
                if token in stop_ids:
                    reason = "stop"
                    break
            sequences.append(Sequence(out, logprobs, reason, f"seq-{rng.integers(1 << 40)}"))
            self.service.sampled.add(sequences[-1].sequence_id)
        prompt_logprobs = None
        topk = None
        if include_prompt_logprobs:
            prompt_logprobs = [None, *self.score(ids)]
        if topk_prompt_logprobs:
            topk = [None]
            for a in ids[:-1]:
                lp = log_softmax(self.logits[a])
                order = np.argsort(-lp, kind="stable")[:topk_prompt_logprobs]
                topk.append([(int(t), float(lp[t])) for t in order])
        return Future(Response(sequences, prompt_logprobs, topk))

    def compute_logprobs(self, prompt: Any, prompt_logprobs_last_n: int | None = None) -> Future:
        return Future([None, *self.score(tokens_of(prompt))])

    def score(self, ids: list[int]) -> list[float]:
        return [float(log_softmax(self.logits[a])[b]) for a, b in zip(ids, ids[1:], strict=False)]

    def get_tokenizer(self) -> Any:
        return self.service.tokenizer


@dataclass
class ForwardBackwardOutput:
    loss_fn_outputs: list[dict[str, Any]]
    metrics: dict[str, float]


@dataclass
class Saved:
    path: str


@dataclass
class OptimOutput:
    metrics: dict[str, float]


class TrainingClient:
    model_id = "fake-run"

    def __init__(self, service: Service, state: State) -> None:
        self.service, self.state = service, state
        self.gradient = np.zeros((VOCAB, VOCAB))

    def _logprobs(self, datum: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        inputs = np.asarray(tokens_of(datum.model_input))
        targets = np.asarray(datum.loss_fn_inputs["target_tokens"].to_numpy())
        lp_NV = log_softmax(self.state.logits[inputs])
        wide = targets if targets.ndim == 2 else targets[:, None]
        lp = np.take_along_axis(lp_NV, wide, axis=1)
        return inputs, targets, lp if targets.ndim == 2 else lp[:, 0]

    def _add(self, inputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """Gradient of −Σ weight·logprob."""
        wide_t, wide_w = (targets, weight) if targets.ndim == 2 else (targets[:, None], weight[:, None])
        p_NV = np.exp(log_softmax(self.state.logits[inputs]))
        for n, token in enumerate(inputs):
            self.gradient[token] += wide_w[n].sum() * p_NV[n]
            np.subtract.at(self.gradient[token], wide_t[n], wide_w[n])

    def forward(self, data: list[Any], loss_fn: str, loss_fn_config: Any = None) -> Future:
        outputs = [{"logprobs": tinker.TensorData.from_numpy(self._logprobs(d)[2].astype(np.float32))} for d in data]
        return Future(ForwardBackwardOutput(outputs, {"loss:sum": 0.0}))

    def forward_backward(self, data: list[Any], loss_fn: str, loss_fn_config: Any = None) -> Future:
        self.service.calls.append("forward_backward")
        self.service.losses.append(loss_fn)
        outputs = []
        for datum in data:
            assert "mask" not in datum.loss_fn_inputs, "mask must not be sent"
            self.service.named.append({span.sequence_id for span in datum.loss_fn_input_spans or ()})
            inputs, targets, lp = self._logprobs(datum)
            assert len(inputs) == len(targets)
            if loss_fn == "cross_entropy":
                weight = np.asarray(datum.loss_fn_inputs["weights"].to_numpy(), dtype=np.float64)
            else:
                q = np.asarray(datum.loss_fn_inputs["logprobs"].to_numpy(), dtype=np.float64)
                advantage = np.asarray(datum.loss_fn_inputs["advantages"].to_numpy(), dtype=np.float64)
                weight = np.exp(lp - q) * advantage
            self._add(inputs, targets, weight)
            outputs.append({"logprobs": tinker.TensorData.from_numpy(lp.astype(np.float32))})
        return Future(ForwardBackwardOutput(outputs, {"loss:sum": 0.0}))

    def forward_backward_custom(self, data: list[Any], loss_fn: Callable[..., Any]) -> Future:
        import torch

        parts = [self._logprobs(d) for d in data]
        leaves = [torch.tensor(lp, dtype=torch.float32, requires_grad=True) for _, _, lp in parts]
        loss, metrics = loss_fn(data, leaves)
        loss.backward()
        for (inputs, targets, _), leaf in zip(parts, leaves, strict=True):
            grad = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            self._add(inputs, targets, -grad.double().numpy())
        self.service.calls.append("forward_backward_custom")
        outputs = [{"logprobs": tinker.TensorData.from_numpy(lp.astype(np.float32))} for _, _, lp in parts]
        return Future(ForwardBackwardOutput(outputs, {"loss:sum": float(loss), **metrics}))

    def optim_step(self, params: Any) -> Future:
        self.service.calls.append("optim_step")
        s, g = self.state, self.gradient
        s.step += 1
        s.m = params.beta1 * s.m + (1 - params.beta1) * g
        s.v = params.beta2 * s.v + (1 - params.beta2) * g * g
        m, v = s.m / (1 - params.beta1**s.step), s.v / (1 - params.beta2**s.step)
        s.logits = s.logits - params.learning_rate * m / (np.sqrt(v) + params.eps)
        self.gradient = np.zeros((VOCAB, VOCAB))
        return Future(OptimOutput({}))

    def save_state(self, name: str, ttl_seconds: int | None = None, **_: Any) -> Future:
        path = f"tinker://fake/weights/{name}"
        self.service.saved[path] = self.state.copy()
        self.service.calls.append("save_state")
        return Future(Saved(path))

    def save_weights_for_sampler(self, name: str, ttl_seconds: int | None = None, **_: Any) -> Future:
        path = f"tinker://fake/sampler_weights/{name}"
        self.service.saved[path] = self.state.copy()
        return Future(Saved(path))

    def save_weights_and_get_sampling_client(self, **_: Any) -> Future:
        return Future(SamplingClient(self.service, self.state.logits))

    def create_sampling_client(self, model_path: str, **_: Any) -> Future:
        return Future(SamplingClient(self.service, self.service.saved[model_path].logits))

    def get_tokenizer(self) -> Any:
        return self.service.tokenizer


class Rest:
    def __init__(self, service: Service) -> None:
        self.service = service

    def delete_checkpoint_from_tinker_path(self, path: str) -> Future:
        self.service.deleted.append(path)
        self.service.saved.pop(path, None)
        return Future(None)

    def get_training_run_by_tinker_path(self, path: str) -> Future:
        class Run:
            user_metadata = dict(self.service.metadata)

        return Future(Run())


class Service:
    """Stands in for ``tinker.ServiceClient``; one instance is the server and its client."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.saved: dict[str, State] = {}
        self.calls: list[str] = []
        self.losses: list[str] = []
        self.sampled: set[str] = set()
        self.named: list[set[str]] = []
        """Of each datum that was trained on, the sequences that it says its targets are of."""
        self.deleted: list[str] = []
        self.metadata: dict[str, str] = {}
        self.unseeded = 0
        self.adapter_seed: int | None = None
        self.allowed: np.ndarray | None = None
        self.sample_error: Callable[[], Exception | None] | None = None
        self.last_client: TrainingClient | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Service:
        return self

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def _client(self, state: State, user_metadata: Any) -> Future:
        self.metadata = dict(user_metadata or {})
        self.last_client = TrainingClient(self, state)
        return Future(self.last_client)

    def create_lora_training_client(
        self, base_model: str, rank: int = 32, seed: int | None = None, user_metadata: Any = None, **_: Any
    ) -> Future:
        self.adapter_seed = seed
        return self._client(State(), user_metadata)

    def create_training_client_from_state(self, path: str, user_metadata: Any = None, **_: Any) -> Future:
        return self._client(State(logits=self.saved[path].logits.copy()), user_metadata)

    def create_training_client_from_state_with_optimizer(
        self, path: str, user_metadata: Any = None, **_: Any
    ) -> Future:
        return self._client(self.saved[path].copy(), user_metadata)

    def create_sampling_client(self, model_path: str | None = None, base_model: str | None = None, **_: Any) -> Future:
        logits = self.saved[model_path].logits if model_path else State().logits
        return Future(SamplingClient(self, logits))

    def create_rest_client(self) -> Rest:
        return Rest(self)

    def close(self, *args: Any) -> None:
        return None
