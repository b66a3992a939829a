"""Residual wirings against their formulas, forwards and backwards."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP
from qkv.parts.norm import LayerNorm
from qkv.parts.residual import Admin, DeepNorm, Parallel, PathDropout, PostNorm, PreNorm, ReZero, path_dropouts

WIDTH = 6
CTX = Context(tokens=Tokens(4))


def stream() -> Tensor:
    return torch.randn(3, 4, WIDTH)


def norm() -> LayerNorm:
    made = LayerNorm(WIDTH)
    with torch.no_grad():
        made.weight.normal_()
        made.bias.normal_()
    return made


def mixer() -> MLP:
    return MLP(WIDTH, 9)


def test_post_norm_norms_the_sum() -> None:
    n, f, x = norm(), mixer(), stream()
    torch.testing.assert_close(PostNorm(n, f)(x, CTX), n(x + f(x)))


def test_pre_norm_leaves_the_stream_as_it_is() -> None:
    n, f, x = norm(), mixer(), stream()
    torch.testing.assert_close(PreNorm(n, f)(x, CTX), x + f(n(x)))


def test_parallel_mixers_read_the_same_norm() -> None:
    n, f, g, x = norm(), mixer(), mixer(), stream()
    torch.testing.assert_close(Parallel(n, f, g)(x, CTX), x + f(n(x)) + g(n(x)))


def test_admin_weighs_the_stream() -> None:
    n, f, x = norm(), mixer(), stream()
    step = Admin(n, f, width=WIDTH)
    torch.testing.assert_close(step(x, CTX), n(x + f(x)))  # before it is profiled it is post-norm
    with torch.no_grad():
        step.omega.normal_()
    torch.testing.assert_close(step(x, CTX), n(x * step.omega + f(x)))


def test_rezero_begins_as_the_identity() -> None:
    f, x = mixer(), stream()
    step = ReZero(f)
    assert torch.equal(step(x, CTX), x)
    step(x, CTX).square().sum().backward()  # and learns: α has a gradient where the mixer has none yet
    assert step.alpha.grad is not None
    torch.testing.assert_close(step.alpha.grad, (2 * x * f(x)).sum().reshape(1))
    assert not any(parameter.grad.any() for parameter in f.parameters() if parameter.grad is not None)


def test_rezero_adds_what_its_gate_lets_through() -> None:
    f, x = mixer(), stream()
    step = ReZero(f)
    with torch.no_grad():
        step.alpha.fill_(-0.7)
    torch.testing.assert_close(step(x, CTX), x - 0.7 * f(x))


def test_deep_norm_weighs_the_stream_by_its_alpha() -> None:
    n, f, x = norm(), mixer(), stream()
    torch.testing.assert_close(DeepNorm(n, f, alpha=1.7)(x, CTX), n(1.7 * x + f(x)))
    torch.testing.assert_close(DeepNorm(n, f, alpha=1.0)(x, CTX), PostNorm(n, f)(x, CTX))


def plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


@pytest.mark.parametrize("wiring", ["post", "pre", "admin", "rezero", "deep"])
def test_gradients_are_those_of_the_formula_in_plain_torch(wiring: str) -> None:
    """Of the input and of every parameter, each of them away from where it starts."""
    n, f = norm().double(), mixer().double()
    x = stream().double().requires_grad_()
    omega, alpha = torch.randn(WIDTH, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
    made = {
        "post": PostNorm(n, f),
        "pre": PreNorm(n, f),
        "admin": Admin(n, f, width=WIDTH),
        "rezero": ReZero(f),
        "deep": DeepNorm(n, f, alpha=2.3),
    }[wiring].double()
    with torch.no_grad():
        if isinstance(made, Admin):
            made.omega.copy_(omega)
        if isinstance(made, ReZero):
            made.alpha.copy_(alpha)
    kept = {name: value.detach().clone().requires_grad_() for name, value in made.named_parameters()}

    def mixed(y: Tensor) -> Tensor:
        inner = (y @ kept["mixer.inner.weight"].T + kept["mixer.inner.bias"]).clamp_min(0)
        return inner @ kept["mixer.outer.weight"].T + kept["mixer.outer.bias"]

    def normed(y: Tensor) -> Tensor:
        return plain_norm(y, kept["norm.weight"], kept["norm.bias"])

    expected = {
        "post": lambda: normed(x + mixed(x)),
        "pre": lambda: x + mixed(normed(x)),
        "admin": lambda: normed(x * kept["omega"] + mixed(x)),
        "rezero": lambda: x + kept["alpha"] * mixed(x),
        "deep": lambda: normed(2.3 * x + mixed(x)),
    }[wiring]()
    y = made(x, CTX)
    torch.testing.assert_close(y, expected)
    direction = torch.randn_like(y)
    mine = torch.autograd.grad(y, [x, *made.parameters()], direction)
    right = torch.autograd.grad(expected, [x, *kept.values()], direction)
    assert all(gradient.any() for gradient in mine)
    for one, other in zip(mine, right, strict=True):
        torch.testing.assert_close(one, other)


class Same(nn.Module):
    """A norm that does nothing, so that a test can see what came before it."""

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return x


def open_rezero(norm: nn.Module, mixer: nn.Module, dropout: float) -> ReZero:
    step = ReZero(mixer, dropout)
    nn.init.ones_(step.alpha)
    return step


WIRINGS = {
    "post": PostNorm,
    "pre": PreNorm,
    "parallel": Parallel,
    "admin": partial(Admin, width=WIDTH),
    "deep": partial(DeepNorm, alpha=1.0),
    "rezero": open_rezero,
}


@pytest.mark.parametrize("wiring", WIRINGS)
def test_dropout_falls_on_the_answer_and_never_on_the_stream(wiring: str) -> None:
    f, x = mixer(), stream()
    step = WIRINGS[wiring](Same(), f, dropout=0.5)
    torch.testing.assert_close(step.eval()(x, CTX), x + f(x))
    added = step.train()(x, CTX) - x
    answer = f(x)
    kept = added.abs() > 1e-7
    assert kept.any()
    assert not kept.all()
    torch.testing.assert_close(added[kept], 2 * answer[kept], atol=1e-5, rtol=1e-4)


def test_a_path_is_left_out_whole_rows_at_a_time() -> None:
    """A row keeps everything, enlarged so that the mean stays, or nothing. [huang2016 eq.2]"""
    x, dropout = torch.ones(20_000, 3, 2), PathDropout(0.25)
    kept = dropout(x)
    assert sorted(kept.unique().tolist()) == pytest.approx([0.0, 4 / 3])
    assert (kept == kept[:, :1, :1]).all()
    share = kept[:, 0, 0].bool().float().mean().item()
    assert share == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / 20_000) ** 0.5)
    assert torch.equal(dropout.eval()(x), x)


def test_a_row_whose_path_is_left_out_is_as_it_was() -> None:
    step, x = PreNorm(norm(), MLP(WIDTH, 8), path_dropout=0.5), torch.randn(64, 4, WIDTH)
    same = (step(x, CTX) == x).flatten(1)
    assert same.any(1).sum() == same.all(1).sum()
    assert 0 < same.all(1).sum() < 64
    step.eval()
    assert not (step(x, CTX) == x).flatten(1).all(1).any()


def test_rates_of_paths_grow_to_the_last_layers() -> None:
    assert path_dropouts(0.3, 4) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert path_dropouts(0.3, 1) == [0.0]
