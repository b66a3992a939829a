"""Hashing, sorting and attending by programs, against torch ops on the same GPU.

pytest -m gpu tests/parts
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qkv.parts.attention.kernels.lsh import LSHKernel, buckets_of, sorted_by_bucket
from qkv.parts.attention.visibility import Causal, Mask, Tokens

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("size", "slots", "factors", "padded", "rounds"),
    [
        (1100, 1152, (8,), True, 3),
        (512, 512, (4, 6), False, 2),
        (1300, 1344, (64, 2), True, 1),
        (5000, 5056, (300,), False, 2),
        (65_536, 65_536, (32, 64), False, 1),
    ],
)
def test_tokens_stand_as_a_stable_sort_puts_them(
    size: int, slots: int, factors: tuple[int, ...], padded: bool, rounds: int
) -> None:
    from qkv.parts.attention.kernels import lsh_triton

    x = torch.randn(2, 2, size, 24).cuda()
    real = (torch.arange(size) < torch.tensor([[size], [size // 2]])).cuda() if padded else None
    rotations = torch.randn(2, 24, rounds, sum(factors) // 2).cuda()
    found = lsh_triton.buckets(x, rotations, factors, real)
    expected = buckets_of(x, rotations, factors, real)
    assert (found.numbers != expected).float().mean() < 1e-4  # sums in another order: hardly a token lies between two
    order = lsh_triton.sorted_by_bucket(found, slots)
    assert torch.equal(order.long(), sorted_by_bucket(found.numbers.long(), slots, math.prod(factors)))


def answers(
    kernel: LSHKernel, q: Tensor, v: Tensor, pull: Tensor, programs: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, ...]:
    if not programs:
        monkeypatch.setattr(kernel, "_on_gpu", lambda *_: False)
    tokens = Tokens(q.shape[2])
    q, v = q.clone().requires_grad_(), v.clone().requires_grad_()
    o = kernel(q, None, v, Mask(Causal(), tokens, tokens, "cuda"), scale=1.0)
    return o.detach(), *torch.autograd.grad(o, (q, v), pull)


@pytest.mark.parametrize(("chunk", "width", "rounds"), [(64, 64, 1), (64, 64, 4), (32, 24, 2), (128, 32, 2)])
def test_keys_are_made_of_queries_inside(chunk: int, width: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, v, pull = (torch.randn(2, 2, 1000, width).cuda() for _ in range(3))
    kernel = LSHKernel(chunk=chunk, rounds=rounds, seed=1)
    found = answers(kernel, q, v, pull, True, monkeypatch)
    for one, other in zip(found, answers(kernel, q, v, pull, False, monkeypatch), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_in_bfloat16_every_call_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    q, v, pull = (torch.randn(1, 4, 4096, 64).cuda().bfloat16() for _ in range(3))
    kernel = LSHKernel(chunk=64, rounds=4, seed=1)
    first, second = (answers(kernel, q, v, pull, True, monkeypatch) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_in_bfloat16_answers_are_near_those_of_the_same_buckets_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding moves tokens that lie between two buckets to the other one: here they stay where they were."""
    from qkv.parts.attention.kernels import lsh_triton

    q, v, pull = (torch.randn(1, 4, 4096, 64).cuda().bfloat16() for _ in range(3))
    kernel, orders, sort = LSHKernel(chunk=64, rounds=4, seed=1), [], lsh_triton.sorted_by_bucket
    monkeypatch.setattr(lsh_triton, "sorted_by_bucket", lambda *given: orders.append(sort(*given)) or orders[0])
    narrow = answers(kernel, q, v, pull, True, monkeypatch)
    wide = answers(kernel, q.float(), v.float(), pull.float(), True, monkeypatch)
    assert len(orders) == 2
    for one, other in zip(narrow, wide, strict=True):
        near = (one.float() - other).abs() < 0.05 + 0.05 * other.abs()
        assert near.float().mean() > 0.999
