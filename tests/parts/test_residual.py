"""Residual wirings against their formulas, and Admin's profile on stacks whose variances are known."""

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.visibility import Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP
from qkv.parts.norm import LayerNorm
from qkv.parts.residual import Admin, Parallel, PathDropout, PostNorm, PreNorm, path_dropouts, profile_admin
from qkv.parts.stack import Stack

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


class Same(nn.Module):
    """A norm that does nothing, so that a test can see what came before it."""

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return x


@pytest.mark.parametrize("wiring", [PostNorm, PreNorm, Parallel, Admin])
def test_dropout_falls_on_the_answer_and_never_on_the_stream(wiring: type[nn.Module]) -> None:
    extra = {"width": WIDTH} if wiring is Admin else {}
    f, x = mixer(), stream()
    step = wiring(Same(), f, dropout=0.5, **extra)
    torch.testing.assert_close(step.eval()(x, CTX), x + f(x))
    added = step.train()(x, CTX) - x
    answer = f(x)
    kept = added.abs() > 1e-7
    assert kept.any()
    assert not kept.all()
    torch.testing.assert_close(added[kept], 2 * answer[kept], atol=1e-5, rtol=1e-4)


class Times(nn.Module):
    """A mixer that answers `factor` times its input."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.factor * x


def admin_stack(*mixers: nn.Module) -> Stack:
    return Stack(Block(step=Admin(LayerNorm(WIDTH), f, width=WIDTH)) for f in mixers)


def omegas(stack: nn.Module) -> list[float]:
    steps = [module for module in stack.modules() if isinstance(module, Admin)]
    assert all((step.omega == step.omega[0]).all() for step in steps)
    return [step.omega[0].item() for step in steps]


def test_omega_is_the_root_of_the_variances_before_it() -> None:
    """Layer norm hands a stream of variance 1 to every mixer, so Var[f_j] = factor². [liu2020 §4.2]"""
    factors = (0.5, 2.0, 3.0, 1.0)
    stack, x = admin_stack(*map(Times, factors)), LayerNorm(WIDTH)(torch.randn(50, 4, WIDTH))
    profile_admin(stack, lambda: stack(x, CTX))
    variances = [factor**2 for factor in factors]
    expected = [1.0] + [sum(variances[:i]) ** 0.5 for i in (1, 2, 3)]
    assert omegas(stack) == pytest.approx(expected, rel=5e-3)


def test_omega_is_set_from_the_real_mixers_outputs_with_every_omega_one() -> None:
    stack, x = admin_stack(*(mixer() for _ in range(4))), torch.randn(3, 4, WIDTH)
    variances, y = [], x
    with torch.no_grad():
        for block in stack.blocks:
            answer = block.step.mixer(y)
            variances.append(answer.var().item())
            y = block.step.norm(y + answer)
    for _ in range(2):  # a second profile starts from ω = 1 again and comes to the same
        profile_admin(stack, lambda: stack(x, CTX))
        assert omegas(stack) == pytest.approx([1.0] + [sum(variances[:i]) ** 0.5 for i in (1, 2, 3)], rel=1e-5)


def test_a_profiled_deep_stack_gives_every_mixer_its_even_share_of_the_output() -> None:
    """Unprofiled, post-norm halves what came before at every step, and the last mixer makes up half of the output.
    Profiled, the i-th of n mixers of equal variance makes up 1/n of it: Σ before + own. [liu2020 §4.1]"""
    depth = 16

    def share_of_the_last(stack: Stack) -> float:
        x = LayerNorm(WIDTH)(torch.randn(400, 4, WIDTH, generator=torch.Generator().manual_seed(1)))
        parts: list[Tensor] = []
        last = stack.blocks[-1].step
        last.norm.register_forward_pre_hook(lambda _, given: parts.append(given[0]))
        last.mixer.register_forward_hook(lambda _, given, answer: parts.append(answer))
        stack(x, CTX)
        answer, total = parts
        return (answer.var() / total.var()).item()

    class Noise(nn.Module):
        """A mixer of variance 1 whose answers have nothing to do with its input."""

        def forward(self, x: Tensor, ctx: Context) -> Tensor:
            return torch.randn_like(x)

    stack = admin_stack(*(Noise() for _ in range(depth)))
    x = LayerNorm(WIDTH)(torch.randn(400, 4, WIDTH))
    assert share_of_the_last(stack) == pytest.approx(1 / 2, rel=0.1)
    profile_admin(stack, lambda: stack(x, CTX))
    assert omegas(stack)[1:] == pytest.approx([i**0.5 for i in range(1, depth)], rel=0.02)
    assert share_of_the_last(stack) == pytest.approx(1 / depth, rel=0.1)


def test_profiling_leaves_no_hook_behind() -> None:
    stack = admin_stack(mixer(), mixer())
    profile_admin(stack, lambda: stack(stream(), CTX))
    assert not any(module._forward_hooks for module in stack.modules())

    def fail() -> None:
        raise RuntimeError("no batch")

    with pytest.raises(RuntimeError, match="no batch"):
        profile_admin(stack, fail)
    assert not any(module._forward_hooks for module in stack.modules())


def test_a_pass_that_leaves_steps_out_is_an_error() -> None:
    stack = admin_stack(mixer(), mixer())
    with pytest.raises(QkvError, match="every step"):
        profile_admin(stack, lambda: stack.blocks[0](stream(), CTX))


def test_each_stack_of_a_model_is_profiled_on_its_own() -> None:
    """The decoder's sums start at the decoder, though the encoder runs in the same pass."""
    encoder, decoder = admin_stack(Times(5.0), Times(5.0)), admin_stack(Times(2.0), Times(1.0))
    x = LayerNorm(WIDTH)(torch.randn(50, 4, WIDTH))
    profile_admin(decoder, lambda: decoder(encoder(x, CTX), CTX))
    assert omegas(encoder) == [1.0, 1.0]
    assert omegas(decoder) == pytest.approx([1.0, 2.0], rel=5e-3)


def test_a_profile_follows_the_order_of_the_pass_not_of_registration() -> None:
    first, second = (Admin(LayerNorm(WIDTH), Times(factor), width=WIDTH) for factor in (3.0, 0.5))
    holder = nn.ModuleList([second, first])  # registered the other way round
    x = LayerNorm(WIDTH)(torch.randn(50, 4, WIDTH))
    profile_admin(holder, lambda: second(first(x, CTX), CTX))
    assert (first.omega == 1).all()
    assert second.omega[0].item() == pytest.approx(3.0, rel=5e-3)


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
