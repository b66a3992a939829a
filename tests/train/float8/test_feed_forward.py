"""A feed-forward in 8 bits: what it computes, that its scales suffice, and when it is taken."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.block import Block
from qkv.parts.feedforward import MLP, find_activation
from qkv.train.float8.activations import activated, sloped
from qkv.train.float8.feed_forward import float8_feed_forward
from qkv.train.float8.maps import float8_linear
from qkv.train.float8.products import float8_products

NAMES = ["relu", "silu", "gelu", "gelu_tanh", "gelu_quick"]


def maps(*, bias: bool = True, width: int = 48, hidden: int = 96) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)


def wide(x: Tensor, inner: nn.Linear, outer: nn.Linear, name: str) -> Tensor:
    return outer(find_activation(name)(inner(x)))


def slopes(y: Tensor, x: Tensor, *of: nn.Linear) -> list[Tensor]:
    torch.manual_seed(1)
    given = [x, *(parameter for each in of for parameter in each.parameters())]
    return list(torch.autograd.grad(y, given, torch.randn(y.shape).bfloat16().to(y)))


def far(mine: Tensor, theirs: Tensor) -> float:
    mine, theirs = (each.detach().cpu().float() for each in (mine, theirs))
    return float((mine - theirs).norm() / theirs.norm())


def apart(x: Tensor, inner: nn.Linear, outer: nn.Linear, name: str) -> Tensor:
    """Each map by itself, whose rows have the scales of their largest numbers."""
    h = find_activation(name)(float8_linear(x, inner.weight, inner.bias))
    return float8_linear(h, outer.weight, outer.bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_two_maps_are(name: str, bias: bool) -> None:
    """But for the smallest numbers, because scales are larger than they would have to be."""
    inner, outer = maps(bias=bias)
    x = torch.randn(2, 32, 48, requires_grad=True)
    found, expected, exact = (function(x, inner, outer, name) for function in (float8_feed_forward, apart, wide))
    assert far(found, expected) < 0.002
    assert 0.005 < far(found, exact) < 0.06
    for mine, theirs in zip(slopes(found, x, inner, outer), slopes(expected, x, inner, outer), strict=True):
        assert mine.dtype is theirs.dtype
        assert far(mine, theirs) < (0.01 if mine.ndim > 1 else 0.04)  # that of b₁ is summed before it is rounded


@pytest.mark.parametrize("size", [2.0**-20, 1.0, 2.0**20])
def test_no_number_is_beyond_its_scale(size: float) -> None:
    """Even where a row of x is a row of the matrix, so that their product is as long as both; torch would say NaN."""
    inner, outer = maps()
    with torch.no_grad():
        inner.weight[7] *= 100
        outer.weight[:, 7] *= 100
    x = torch.randn(32, 48)
    x[3] = inner.weight.detach()[7]
    x = (x * size).requires_grad_()
    y = float8_feed_forward(x, inner, outer, "relu")
    above = torch.randn(32, 48)
    above[3] = outer.weight.detach()[:, 7]
    found = torch.autograd.grad(y, [x, inner.weight, outer.weight], above * size)
    assert all(each.isfinite().all() for each in (y, *found))
    assert far(y, wide(x, inner, outer, "relu")) < 0.06


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_not_hidden(bad: float) -> None:
    inner, outer = maps()
    x = torch.randn(32, 48, requires_grad=True)
    above = torch.randn(32, 48)
    above[5, 5] = bad
    to_x, to_weight = torch.autograd.grad(float8_feed_forward(x, inner, outer, "gelu"), [x, inner.weight], above)
    assert not to_x[5].isfinite().any()
    assert not to_weight.isfinite().any()
    with torch.no_grad():
        x[5, 5] = bad
        assert not float8_feed_forward(x, inner, outer, "gelu")[5].isfinite().any()


@pytest.mark.parametrize("name", NAMES)
def test_slopes_are_those_of_the_activations(name: str) -> None:
    z = torch.linspace(-6, 6, 400).view(4, 100).requires_grad_()
    above, one = torch.randn(4, 100), torch.ones(4, 1)
    h = find_activation(name)(z)
    (dz,) = torch.autograd.grad(h, z, above)
    _, _, sums = sloped(above, z.detach(), one, one, one[0], 2 * one, name)
    torch.testing.assert_close(sums, 2 * dz.sum(0))
    by_rows, by_columns = activated(z.detach(), one, name)
    torch.testing.assert_close(by_rows.float(), h.detach(), rtol=2**-4, atol=2**-10)
    assert torch.equal(by_columns.float(), by_rows.float().T)


def taken(mlp: MLP, x: Tensor) -> bool:
    """Whether both maps are one: then nothing calls the inner one."""
    called: list[int] = []
    block = Block(step=mlp)
    with float8_products(block):
        own = mlp.inner.forward
        mlp.inner.forward = lambda x: called.append(1) or own(x)  # type: ignore[assignment,func-returns-value]
        mlp(x)
        mlp.inner.forward = own  # type: ignore[method-assign]
    assert "forward" not in vars(mlp)
    return not called


def test_it_is_taken_where_nothing_is_between_the_maps() -> None:
    x = torch.randn(2, 16, 48)
    assert taken(MLP(48, 96, F.relu), x)
    assert taken(MLP(48, 96, F.relu, dropout=0.5).eval(), x)
    assert not taken(MLP(48, 96, F.relu, dropout=0.5), x)
    assert not taken(MLP(48, 96, torch.tanh), x)
    assert not taken(MLP(48, 96, F.relu), x[:1, :9])
    watched = MLP(48, 96, F.relu)
    watched.outer.register_forward_hook(lambda *_: None)
    assert not taken(watched, x)


@pytest.mark.slow
def test_a_compiler_takes_it_as_it_is() -> None:
    inner, outer = maps()
    code = torch.compile(float8_feed_forward, backend="aot_eager", dynamic=True, fullgraph=True)
    for length in (32, 64):
        x = torch.randn(2, length, 48, requires_grad=True)
        with torch.compiler.set_stance("default" if length == 32 else "fail_on_recompile"):
            found = code(x, inner, outer, "gelu_tanh")
        expected = float8_feed_forward(x, inner, outer, "gelu_tanh")
        torch.testing.assert_close(found, expected)
        for mine, theirs in zip(slopes(found, x, inner, outer), slopes(expected, x, inner, outer), strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["plain", "compiled", "for all shapes"])
@pytest.mark.parametrize(("m", "k", "n"), [(64, 96, 128), (272, 48, 400), (512, 768, 3072)])
def test_a_gpu_has_the_same_numbers(way: str, m: int, k: int, n: int) -> None:
    inner, outer = maps(width=k, hidden=n)
    x = torch.randn(m, k).bfloat16().requires_grad_()
    there = [nn.Linear(each.in_features, each.out_features, device="cuda") for each in (inner, outer)]
    for mine, theirs in zip(there, (inner, outer), strict=True):
        mine.load_state_dict(theirs.state_dict())
    expected = float8_feed_forward(x.float(), inner, outer, "gelu_tanh")
    function = float8_feed_forward if way == "plain" else torch.compile(float8_feed_forward, dynamic=way != "compiled")
    x_there = x.detach().cuda().requires_grad_()
    found = function(x_there, *there, "gelu_tanh")
    assert found.dtype is torch.bfloat16
    pairs = zip((found, *slopes(found, x_there, *there)), (expected, *slopes(expected, x, inner, outer)), strict=True)
    for mine, theirs in pairs:
        # bfloat16 in between: what then lies on the other side of a half is rounded to the other number of 8 bits.
        assert far(mine, theirs) < 0.02
