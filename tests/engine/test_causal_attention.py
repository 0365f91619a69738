"""The matrix-product attention of the trainer against torch's own, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tinker_backend.runtime.attention import PackLayout, packed_attention
from tinker_backend.runtime.causal_attention import causal_attention
from tinker_backend.runtime.hardware import use_fast_float32


def leaves(n: int, length: int, heads: int, key_heads: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(n, length, h, 16) for h in (heads, key_heads, key_heads)]
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_(True) for s in shapes]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("length", [1, 5, 128, 129, 300])
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_result_and_gradients_equal_torch(
    length: int, heads: int, key_heads: int, dtype: torch.dtype, tolerance: float
) -> None:
    ours, theirs = (leaves(2, length, heads, key_heads, dtype) for _ in range(2))
    slope = torch.randn(2, length, heads, 16, generator=torch.Generator().manual_seed(1), dtype=dtype)
    out, expected = causal_attention(*ours, scale=0.3), reference(*theirs)
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=0)
    out.backward(slope)
    expected.backward(slope)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=20 * tolerance, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(causal_attention(*ours, scale=0.3), out, atol=tolerance, rtol=0)


def test_bfloat16_is_no_worse_than_torch() -> None:
    exact = leaves(2, 200, 6, 2, torch.float64)
    exact = [x.detach().bfloat16().double().requires_grad_(True) for x in exact]
    slope = torch.randn(2, 200, 6, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = reference(*exact)
    expected.backward(slope.double())
    errors = []
    for function in (lambda *x: causal_attention(*x, scale=0.3), reference):
        narrow = [x.detach().bfloat16().requires_grad_(True) for x in exact]
        out = function(*narrow)
        out.backward(slope)
        pairs = [(out, expected), *((n.grad, e.grad) for n, e in zip(narrow, exact, strict=True))]
        errors.append([float((a.double() - b).detach().norm() / b.detach().norm()) for a, b in pairs])
    for ours, theirs in zip(*errors, strict=True):
        assert ours < 1.2 * theirs and ours < 0.01


@pytest.mark.parametrize("lengths", [[7], [5, 5, 5], [3, 40, 2, 41, 39], [1, 1, 200, 1], [64, 64, 10, 64]])
def test_sequences_of_a_pack_do_not_see_one_another(lengths: list[int]) -> None:
    layout = PackLayout(lengths, torch.device("cpu"))
    tokens = sum(lengths)
    assert layout.positions.tolist() == [i for n in lengths for i in range(n)]
    q, k, v = (x[0] for x in leaves(1, tokens, 4, 2, torch.float32))
    together = packed_attention(q, k, v, layout, 0.3)
    at = 0
    for n in lengths:
        part = slice(at, at + n)
        alone = causal_attention(q[None, part], k[None, part], v[None, part], 0.3)[0].reshape(n, -1)
        torch.testing.assert_close(together[part], alone, atol=1e-6, rtol=0)
        at += n


def test_fast_float32_is_float32() -> None:
    products = torch.backends.mkldnn.matmul
    before = products.fp32_precision
    try:
        fast = use_fast_float32()
        assert products.fp32_precision == ("bf16" if fast else before)
        left, right = torch.randn(333, 257), torch.randn(257, 129)
        wide = left.double() @ right.double()
        assert ((left @ right) - wide).abs().max() < 1e-5 * wide.abs().max()
    finally:
        products.fp32_precision = before
