"""Pools: one vector a row, of its real tokens alone."""

import pytest
import torch
from torch import nn

from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import DensePool, FirstToken, LastToken, MeanOfPatches, MeanOfTokens, NormedPool, UnitLength

X = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
WHOLE = Context(tokens=Tokens(4))
LEFT = Context(tokens=Tokens(4, documents=torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1]])))
RIGHT = Context(tokens=Tokens(4, documents=torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])))


def rows(first: int, second: int) -> torch.Tensor:
    return torch.stack((X[0, first], X[1, second]))


def test_the_first_real_token() -> None:
    assert torch.equal(FirstToken()(X, WHOLE), rows(0, 0))
    assert torch.equal(FirstToken()(X, RIGHT), rows(0, 0))
    assert torch.equal(FirstToken()(X, LEFT), rows(1, 3))


def test_the_last_real_token() -> None:
    assert torch.equal(LastToken()(X, WHOLE), rows(3, 3))
    assert torch.equal(LastToken()(X, RIGHT), rows(2, 0))
    assert torch.equal(LastToken()(X, LEFT), rows(3, 3))


def test_the_mean_of_real_tokens() -> None:
    torch.testing.assert_close(MeanOfTokens()(X, WHOLE), X.mean(1))
    torch.testing.assert_close(MeanOfTokens()(X, RIGHT), torch.stack((X[0, :3].mean(0), X[1, 0])))
    torch.testing.assert_close(MeanOfTokens()(X, LEFT), torch.stack((X[0, 1:].mean(0), X[1, 3])))


def test_a_row_of_padding_alone_has_a_finite_mean() -> None:
    empty = Context(tokens=Tokens(4, documents=torch.zeros(2, 4, dtype=torch.long)))
    assert torch.equal(MeanOfTokens()(X, empty), torch.zeros(2, 3))


@pytest.mark.parametrize("pool", [FirstToken(), MeanOfTokens()])
def test_unit_length(pool: nn.Module) -> None:
    found = UnitLength(pool)(X, RIGHT)
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(2))
    torch.testing.assert_close(found * pool(X, RIGHT).norm(dim=-1, keepdim=True), pool(X, RIGHT))


def test_a_dense_pool_is_a_layer_over_a_pool() -> None:
    pool = DensePool(FirstToken(), 3, torch.tanh)
    expected = torch.tanh(X[:, 0] @ pool.dense.weight.T + pool.dense.bias)
    torch.testing.assert_close(pool(X, WHOLE), expected)


def test_the_mean_of_patches_leaves_out_what_stands_before_them() -> None:
    torch.testing.assert_close(MeanOfPatches()(X, WHOLE), X.mean(1))
    torch.testing.assert_close(MeanOfPatches(2)(X, WHOLE), (X[:, 2] + X[:, 3]) / 2)


@torch.no_grad()
def test_a_normed_pool_is_a_norm_over_a_pool() -> None:
    norm = LayerNorm(3)
    norm.weight.normal_()
    torch.testing.assert_close(NormedPool(FirstToken(), norm)(X, WHOLE), norm(X[:, 0]))
