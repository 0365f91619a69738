"""The numbers that servers are compared with are themselves compared with automatic differentiation and torch's AdamW."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from tinker_backend.conformance import oracle, wire

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
LP = RNG.normal(-2, 1, 40)
Q = LP + RNG.normal(0, 0.4, 40)
ADV = RNG.normal(0, 1, 40)
MASK = (RNG.random(40) < 0.7).astype(float)


def _ratio(lp: torch.Tensor) -> torch.Tensor:
    return torch.exp(lp - torch.tensor(Q))


def _ppo(lp: torch.Tensor, low: float, high: float) -> torch.Tensor:
    ratio = _ratio(lp)
    return -torch.minimum(ratio * torch.tensor(ADV), ratio.clamp(low, high) * torch.tensor(ADV)).sum()


def _gspo(lp: torch.Tensor) -> torch.Tensor:
    mask = torch.tensor(MASK)
    mean = ((lp.detach() - torch.tensor(Q)) * mask).sum() / mask.sum()
    ratio = mean.exp() * torch.exp(lp - lp.detach())
    return -torch.minimum(ratio * torch.tensor(ADV), ratio.clamp(0.9, 1.1) * torch.tensor(ADV)).sum()


CASES: dict[str, tuple[Callable[[], tuple[float, np.ndarray]], Callable[[torch.Tensor], torch.Tensor]]] = {
    "cross_entropy": (lambda: oracle.cross_entropy(LP, ADV), lambda lp: -(lp * torch.tensor(ADV)).sum()),
    "importance_sampling": (
        lambda: oracle.importance_sampling(LP, Q, ADV),
        lambda lp: -(_ratio(lp) * torch.tensor(ADV)).sum(),
    ),
    "ppo": (lambda: oracle.ppo(LP, Q, ADV), lambda lp: _ppo(lp, 0.8, 1.2)),
    "cispo": (
        lambda: oracle.cispo(LP, Q, ADV, 0.7, 1.3),
        lambda lp: -(_ratio(lp).clamp(0.7, 1.3).detach() * lp * torch.tensor(ADV)).sum(),
    ),
    "dro": (
        lambda: oracle.dro(LP, Q, ADV, 0.3),
        lambda lp: -(lp * torch.tensor(ADV) - 0.15 * (lp - torch.tensor(Q)) ** 2).sum(),
    ),
    "gspo": (lambda: oracle.gspo(LP, Q, ADV, MASK, 0.9, 1.1), _gspo),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_and_its_derivative_equal_automatic_differentiation(name: str) -> None:
    value, slope = CASES[name][0]()
    lp = torch.tensor(LP, requires_grad=True)
    loss = CASES[name][1](lp)
    loss.backward()
    assert lp.grad is not None
    assert value == pytest.approx(loss.item(), abs=1e-10)
    np.testing.assert_allclose(slope, lp.grad.numpy(), atol=1e-10)


@pytest.mark.parametrize(("decay", "clip"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.5), (0.1, 0.5)])
def test_adamw_equals_torchs(decay: float, clip: float) -> None:
    weights = {"a": RNG.normal(size=(3, 4)), "b": RNG.normal(size=5)}
    parameters = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in weights.items()}
    theirs = torch.optim.AdamW(parameters.values(), lr=0.01, betas=(0.9, 0.95), eps=1e-4, weight_decay=decay)
    ours = oracle.AdamW()
    for _ in range(4):
        gradients = {name: RNG.normal(size=value.shape) for name, value in weights.items()}
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name])
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
        theirs.step()
        weights = ours.step(weights, gradients, 0.01, eps=1e-4, weight_decay=decay, clip=clip)
    for name, parameter in parameters.items():
        np.testing.assert_allclose(weights[name], parameter.detach().numpy(), atol=1e-6)


def test_safetensors_are_read_in_every_float_type() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    value = torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4
    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
    read = oracle.read_safetensors(safetensors.save({name: value.to(kind) for name, kind in kinds.items()}))
    for name in kinds:
        np.testing.assert_array_equal(read[name], value.double().numpy())
    with pytest.raises(ValueError):
        oracle.read_safetensors(b"short")


def test_the_wire_form_of_a_request_is_the_documented_one() -> None:
    example = wire.Example([1, 2, 3, 4], {"target_tokens": np.array([2, 3, 4, 5]), "weights": np.array([0.0, 1, 1, 1])})
    body = wire.forward_backward_request("sess-abc:train:0", 1, [example, example], "cross_entropy")
    assert len(body) == 271
    assert body.hex().startswith("0a10736573732d6162633a747261696e3a3010011a740a140a120a100100000002000000")


def test_csr_keeps_exactly_the_cells_that_differ_from_the_pad() -> None:
    dense = np.array([[-1, 5, -1], [-1, -1, -1], [7, -1, 0]])
    csr = wire.Csr.from_dense(dense, pad=-1)
    assert (csr.values.tolist(), csr.crow.tolist(), csr.col.tolist()) == ([5, 7, 0], [0, 1, 1, 3], [1, 0, 2])
    assert json.loads(json.dumps(csr.to_json()))["shape"] == [3, 3]
