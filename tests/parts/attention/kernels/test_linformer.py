"""Linformer against its equation, its paper's claims, and what it must refuse."""

from __future__ import annotations

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.linformer import LinformerKernel, RowProjection, share_of_spectrum
from qkv.parts.attention.visibility import Causal, Mask, NotPadding, Tokens, Window
from qkv.parts.context import Context
from tests.parts.attention.kernels.compare import inputs

CLOSE = {"atol": 1e-5, "rtol": 1e-4}


@pytest.mark.parametrize("size", [1, 2, 9, 64])
@pytest.mark.parametrize("heads", [1, 4], ids=["shared by heads", "a head each"])
def test_it_is_its_equation(heads: int, size: int) -> None:
    given = inputs(size, size, value_width=12)
    kernel = LinformerKernel(RowProjection(64, 5, heads), RowProjection(64, 5, heads))
    for head in range(4):
        e, f = (part.weight[head if heads > 1 else 0, :, :size] for part in (kernel.keys, kernel.values))
        scores = given.q[:, head] @ (e @ given.k[:, head]).transpose(-1, -2) / 8**0.5
        expected = scores.softmax(-1) @ (f @ given.v[:, head])
        torch.testing.assert_close(kernel(given.q, given.k, given.v)[:, head], expected, **CLOSE)


def test_as_many_tokens_as_there_were_are_exact() -> None:
    given, whole = inputs(9, 9), RowProjection(9, 9)
    with torch.no_grad():
        whole.weight.copy_(torch.eye(9)[None])
    torch.testing.assert_close(
        LinformerKernel(whole, whole)(given.q, given.k, given.v), exact(given.q, given.k, given.v), **CLOSE
    )


def test_more_tokens_come_nearer_to_the_products_they_stand_for() -> None:
    """[wang2020 theorem 2]: E projects as Johnson and Lindenstrauss do, with errors of 1/√r: a tenth at 100 times r."""
    torch.manual_seed(0)
    x, y = torch.randn(200, 1, 1, 256, 1), torch.randn(200, 1, 1, 256, 1)
    misses = []
    for tokens in (4, 400):
        kept = torch.cat(
            [(RowProjection(256, tokens).weight @ torch.cat([a, b], -1)) for a, b in zip(x, y, strict=True)]
        )
        products = (kept[..., 0] * kept[..., 1]).sum(-1).flatten()
        misses.append(float((products - (x * y).sum((1, 2, 3, 4))).std().detach()))
    assert 7 < misses[0] / misses[1] < 14


def test_projections_can_be_shared_by_layers() -> None:
    shared = RowProjection(16, 4)
    first, second = (Attention(8, 2, kernel=LinformerKernel(shared, shared)) for _ in range(2))
    x = second(first(torch.randn(1, 9, 8), Context(tokens=Tokens(9))), Context(tokens=Tokens(9)))
    x.sum().backward()
    assert first.kernel is not second.kernel
    assert len({id(parameter) for mixer in (first, second) for parameter in mixer.kernel.parameters()}) == 1
    assert shared.weight.grad is not None


def test_padding_counts_for_nothing() -> None:
    given = inputs(9, 9)
    kernel = LinformerKernel(RowProjection(9, 4), RowProjection(9, 4))
    tokens = Tokens.padded(torch.tensor([9, 4, 1]), 9)
    found = kernel(given.q, given.k, given.v, Mask(NotPadding(), tokens, tokens, "cpu"))
    alone = kernel(given.q[1:2], given.k[1:2, :, :4], given.v[1:2, :, :4])
    torch.testing.assert_close(found[1:2], alone, **CLOSE)


@pytest.mark.parametrize("rule", [Causal(), Causal() & NotPadding(), Window(3)])
def test_look_ahead_and_windows_are_refused(rule: Causal | Window) -> None:
    mixer = Attention(8, 2, visibility=rule, kernel=LinformerKernel(RowProjection(16, 4), RowProjection(16, 4)))
    with pytest.raises(QkvError, match="use another kernel"):
        mixer(torch.randn(1, 9, 8), Context(tokens=Tokens(9)))


def test_longer_rows_and_biases_are_refused() -> None:
    given, kernel = inputs(9, 9), LinformerKernel(RowProjection(8, 4), RowProjection(8, 4))
    with pytest.raises(QkvError, match="for 8 tokens cannot take 9"):
        kernel(given.q, given.k, given.v)
    with pytest.raises(QkvError, match="bias"):
        kernel(given.q[:, :, :8], given.k[:, :, :8], given.v[:, :, :8], bias=torch.zeros(1, 1, 8, 8))


def test_the_share_of_the_spectrum() -> None:
    rank_one = torch.full((2, 6, 6), 1 / 6)
    torch.testing.assert_close(share_of_spectrum(rank_one), torch.ones(2, 6), atol=1e-5, rtol=0)
    torch.testing.assert_close(share_of_spectrum(torch.eye(4)), torch.tensor([0.25, 0.5, 0.75, 1.0]))
