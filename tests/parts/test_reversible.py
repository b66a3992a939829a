"""The reversible stack against the same layers kept in memory by autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.lsh import LSHKernel
from qkv.parts.attention.shared import SharedAttention
from qkv.parts.attention.visibility import Causal, Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context, Ledger
from qkv.parts.feedforward import MLP
from qkv.parts.norm import LayerNorm
from qkv.parts.residual import PostNorm, PreNorm
from qkv.parts.reversible import ReversibleStack, in_two_streams


def stack(layers: int = 3, dropout: float = 0.0, hashed: bool = False) -> ReversibleStack:
    def attention() -> torch.nn.Module:
        if hashed:
            return SharedAttention(16, 2, visibility=Causal(), kernel=LSHKernel(chunk=8))
        return Attention(16, 2, visibility=Causal())

    blocks = [
        Block(
            attention=PreNorm(LayerNorm(16), attention(), dropout),
            feed_forward=PreNorm(LayerNorm(16), MLP(16, 32), dropout),
        )
        for _ in range(layers)
    ]
    made = ReversibleStack(blocks, LayerNorm(32))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made


def ordinary(made: ReversibleStack, x: Tensor, ctx: Context) -> Tensor:
    both = torch.cat(in_two_streams(made.blocks, x, x, ctx), -1)
    assert made.norm is not None
    return made.norm(both, ctx)


def test_operations_can_be_counted_without_numbers() -> None:
    with torch.device("meta"):
        made = stack(hashed=True)
        x = torch.randn(2, 20, 16, requires_grad=True)
        made(x, Context(tokens=Tokens(20))).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("hashed", [False, True], ids=["plain", "hashed"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_the_ordinary_stack(dropout: float, hashed: bool) -> None:
    made, x, pull = stack(dropout=dropout, hashed=hashed), torch.randn(2, 20, 16), torch.randn(2, 20, 32)
    found = []
    for forward in (made, lambda x, ctx: ordinary(made, x, ctx)):
        torch.manual_seed(3)
        made.zero_grad()
        leaf = x.clone().requires_grad_()
        y = forward(leaf, Context(tokens=Tokens(20)))
        y.backward(pull)
        found.append([y.detach(), leaf.grad, *(parameter.grad for parameter in made.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_no_activation_of_a_layer_is_kept() -> None:
    def kept(layers: int) -> int:
        made, sizes = stack(layers), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            made(torch.randn(2, 20, 16, requires_grad=True), Context(tokens=Tokens(20)))
        own = {parameter.numel() for parameter in made.parameters()}
        return sum(size for size in sizes if size not in own)

    assert kept(2) == kept(12) > 0


def test_parameters_that_do_not_learn_get_no_gradient() -> None:
    made = stack()
    frozen = next(made.blocks[1].parameters())
    frozen.requires_grad_(False)
    made(torch.randn(1, 5, 16, requires_grad=True), Context(tokens=Tokens(5))).sum().backward()
    assert frozen.grad is None
    assert sum(parameter.grad is None for parameter in made.parameters()) == 1


def test_the_random_numbers_after_it_are_left_alone() -> None:
    made = stack(dropout=0.5)
    y = made(torch.randn(1, 5, 16, requires_grad=True), Context(tokens=Tokens(5)))
    before = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(before, torch.get_rng_state())


def test_what_is_recorded_is_recorded_once() -> None:
    made = stack()
    ledger = Ledger(made, {"weights"})
    made(torch.randn(1, 5, 16, requires_grad=True), Context(tokens=Tokens(5), ledger=ledger)).sum().backward()
    assert len(ledger.entries) == 3
    assert all(len(entries) == 1 for entries in ledger.entries.values())


def test_other_blocks_are_refused() -> None:
    with pytest.raises(QkvError, match="two pre-norm steps"):
        ReversibleStack([Block(one=PreNorm(LayerNorm(4), MLP(4, 8)))])
    with pytest.raises(QkvError, match="two pre-norm steps"):
        ReversibleStack([Block(one=PostNorm(LayerNorm(4), MLP(4, 8)), two=PreNorm(LayerNorm(4), MLP(4, 8)))])
