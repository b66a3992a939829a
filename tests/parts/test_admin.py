"""Admin's profile on stacks whose variances are known, and its ω folded away without a change."""

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.catalogue import build
from qkv.parts.admin import fold_admin, profile_admin, profile_stacks
from qkv.parts.attention.visibility import Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.residual import Admin, PostNorm
from qkv.parts.stack import Stack
from tests.models.small import small_model

WIDTH = 6
CTX = Context(tokens=Tokens(4))


def stream() -> Tensor:
    return torch.randn(3, 4, WIDTH)


def mixer() -> MLP:
    return MLP(WIDTH, 9)


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


def test_a_profile_counts_every_batch_of_its_forward() -> None:
    """Var[f_j] over two batches is that of all their numbers together, not of the last batch alone."""
    stack = admin_stack(mixer(), mixer())
    batches = [torch.randn(3, 4, WIDTH), 3 * torch.randn(5, 4, WIDTH)]
    first = stack.blocks[0].step.mixer
    with torch.no_grad():
        answers = torch.cat([first(x).flatten() for x in batches])
    profile_admin(stack, lambda: [stack(x, CTX) for x in batches])
    assert omegas(stack)[1] == pytest.approx(answers.var().item() ** 0.5, rel=1e-5)


def test_a_profile_leaves_padding_out() -> None:
    stack, x = admin_stack(mixer(), mixer()), torch.randn(2, 4, WIDTH)
    x[1, 2:] = 100.0
    ctx = Context(tokens=Tokens.padded(torch.tensor([4, 2]), 4))
    profile_admin(stack, lambda: stack(x, ctx))
    with torch.no_grad():
        real = torch.cat([stack.blocks[0].step.mixer(x[0]), stack.blocks[0].step.mixer(x[1, :2])])
    assert omegas(stack)[1] == pytest.approx(real.var().item() ** 0.5, rel=1e-5)


def test_profiling_all_stacks_leaves_other_wirings_alone() -> None:
    source, target = torch.randint(0, 23, (2, 5)), torch.randint(0, 23, (2, 4))
    plain = small_model("transformer")
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    profile_stacks(plain, lambda: plain(source, None, target))
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    model = small_model("transformer-admin")
    profile_stacks(model, lambda: model(source, None, target))
    for stack in (model.encoder, model.decoder):
        assert omegas(stack)[0] == 1.0
        assert all(omega != 1.0 for omega in omegas(stack)[1:])


@torch.no_grad()
def test_folded_weights_answer_as_before_and_are_those_of_post_norm() -> None:
    """Every parameter is noise, ω included, but the first ω of each stack, which has no norm before it to go to."""
    model = small_model("transformer-admin")
    for stack in (model.encoder, model.decoder):
        for step in stack.modules():
            if isinstance(step, Admin):
                step.omega.uniform_(0.5, 2.0).mul_(torch.randn(len(step.omega)).sign())
        stack.blocks[0].attention.omega.fill_(1.0)
    source, target = torch.randint(0, 23, (3, 6)), torch.randint(0, 23, (3, 5))
    model = model.double()
    before = model(source, None, target)
    fold_admin(model.encoder)
    fold_admin(model.decoder)
    torch.testing.assert_close(model(source, None, target), before, rtol=1e-9, atol=1e-9)
    plain = build("transformer", model.sizes).double().eval()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if not name.endswith("omega")})
    torch.testing.assert_close(plain(source, None, target), before, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_first_omega_stays_where_it_is() -> None:
    model = small_model("transformer-admin").double()
    source, target = torch.randint(0, 23, (3, 6)), torch.randint(0, 23, (3, 5))
    before, first = model(source, None, target), model.encoder.blocks[0].attention.omega.clone()
    fold_admin(model.encoder)
    torch.testing.assert_close(model(source, None, target), before, rtol=1e-9, atol=1e-9)
    steps = [module for module in model.encoder.modules() if isinstance(module, Admin)]
    assert torch.equal(steps[0].omega, first)
    assert all((step.omega == 1).all() for step in steps[1:])


def test_what_cannot_be_folded_says_so_and_stays_whole() -> None:
    with pytest.raises(QkvError, match="Only a stack of Admin"):
        fold_admin(Stack([Block(a=PostNorm(LayerNorm(WIDTH), mixer()), b=PostNorm(LayerNorm(WIDTH), mixer()))]))
    norms = [RMSNorm(WIDTH), LayerNorm(WIDTH)]
    with pytest.raises(QkvError, match="layer norms"):
        fold_admin(Stack(Block(step=Admin(norm, mixer(), width=WIDTH)) for norm in norms))
    with pytest.raises(QkvError, match="Times reads the stream"):
        fold_admin(admin_stack(mixer(), Times(2.0)))
    again = Stack([Block(step=Admin(LayerNorm(WIDTH), mixer(), width=WIDTH))], order=[0, 0])
    with pytest.raises(QkvError, match="again and again"):
        fold_admin(again)
    stack = admin_stack(mixer(), mixer(), mixer())
    with torch.no_grad():
        stack.blocks[1].step.omega.fill_(3.0)
        stack.blocks[2].step.omega[0] = 0.0
    with pytest.raises(QkvError, match="ω of 0"):
        fold_admin(stack)
    assert (stack.blocks[1].step.omega == 3).all()
