"""What makes deep stacks hard to train, each figure against the same by hand, and the two effects of the paper."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.look.difficulty import (
    FirstUpdate,
    RandomNoise,
    block_parameters,
    branch_shares,
    output_change,
    parameter_gradient_norms,
    stream_gradient_norms,
)
from qkv.models.catalogue import build
from qkv.models.transformer import TransformerSizes
from qkv.parts.admin import profile_stacks
from qkv.parts.attention.visibility import Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP
from qkv.parts.norm import LayerNorm
from qkv.parts.residual import Admin, DeepNorm, Parallel, PostNorm, PreNorm, ReZero
from qkv.parts.stack import Stack

WIDTH = 8
CTX = Context(tokens=Tokens(5))
X = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(3))


class Model(nn.Module):
    def __init__(self, *steps: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.stack = Stack([Block(step=step) for step in steps], norm)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)

    def forward(self) -> Tensor:
        return self.stack(X, CTX)


def made(wiring: type[nn.Module], norm: nn.Module | None = None, **more: float) -> Model:
    torch.manual_seed(0)
    if wiring is ReZero:
        return Model(*(ReZero(MLP(WIDTH, 12), dropout=0.5) for _ in range(3)))
    return Model(*(wiring(LayerNorm(WIDTH), MLP(WIDTH, 12), 0.5, **more) for _ in range(3)), norm=norm)


WIRINGS = {
    "post": lambda: made(PostNorm),
    "pre": lambda: made(PreNorm, LayerNorm(WIDTH)),
    "admin": lambda: made(Admin, width=WIDTH),
    "rezero": lambda: made(ReZero),
    "deep": lambda: made(DeepNorm, alpha=1.5),
}
each_wiring = pytest.mark.parametrize("name", WIRINGS)


@each_wiring
def test_change_of_the_output_is_that_of_two_passes(name: str) -> None:
    """After each block, through the last norm where there is one; and the model is left as it was."""
    model = WIRINGS[name]().train()
    kept = {key: value.clone() for key, value in model.state_dict().items()}

    def prefixes() -> list[Tensor]:
        with torch.no_grad():
            return model.eval().stack.after_each(X, CTX)

    before = prefixes()
    RandomNoise(0.1, seed=5)(model)
    expected = [(one - other).square().mean().item() for one, other in zip(before, prefixes(), strict=True)]
    model.load_state_dict(kept)
    model.train()
    assert output_change(model, model, RandomNoise(0.1, seed=5)) == {"stack": pytest.approx(expected, rel=1e-4)}
    assert min(expected) > 0
    assert model.training
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_weights_come_back_where_a_perturbation_fails() -> None:
    model = WIRINGS["post"]()
    kept = [parameter.clone() for parameter in model.parameters()]

    def fail(model: nn.Module) -> None:
        RandomNoise()(model)
        raise RuntimeError("no batch")

    with pytest.raises(RuntimeError, match="no batch"):
        output_change(model, model, fail)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), kept, strict=True))


def test_padding_is_left_out_of_the_change() -> None:
    model = WIRINGS["post"]().eval()
    ctx = Context(tokens=Tokens.padded(torch.tensor([5, 2, 5]), 5))
    found = output_change(model, lambda: model.stack(X, ctx), RandomNoise())["stack"][-1]
    with torch.no_grad():
        before = model()
        RandomNoise()(model)
        change = (model() - before).square()
    real = torch.cat([change[0], change[1, :2], change[2]])
    assert found == pytest.approx(real.mean().item(), rel=1e-4)
    assert found != pytest.approx(change.mean().item(), rel=1e-3)


def test_noise_is_a_share_of_each_matrix_and_leaves_vectors() -> None:
    model = made(Admin, width=WIDTH)
    before = {name: value.clone() for name, value in model.named_parameters()}
    RandomNoise(0.3)(model)
    for name, value in model.named_parameters():
        if value.ndim == 1:
            assert torch.equal(value, before[name])
        else:
            moved, size = (value - before[name]).square().mean().sqrt(), before[name].square().mean().sqrt()
            assert (moved / size).item() == pytest.approx(0.3, rel=0.25)


def test_the_first_update_is_that_of_adam() -> None:
    models = [WIRINGS["admin"]().eval(), WIRINGS["admin"]().eval()]
    FirstUpdate(lambda: models[0]().square().sum(), rate=0.01)(models[0])
    optimizer = torch.optim.Adam(models[1].parameters(), lr=0.01)
    models[1]().square().sum().backward()
    optimizer.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert all(parameter.grad is None for parameter in models[0].parameters())


@each_wiring
def test_gradients_of_the_stream_are_those_of_autograd(name: str) -> None:
    model = WIRINGS[name]()
    direction = torch.randn(3, 5, WIDTH)
    found = stream_gradient_norms(model, lambda: (model() * direction).sum())
    x, streams = X, []
    model.eval()
    for block in model.stack.blocks:
        x = block(x, CTX).requires_grad_()
        streams.append(x)
    y = x if model.stack.norm is None else model.stack.norm(x, CTX)
    expected = [gradient.norm().item() for gradient in torch.autograd.grad((y * direction).sum(), streams)]
    assert list(found["stack"]) == ["1 step", "2 step", "3 step"]
    assert list(found["stack"].values()) == pytest.approx(expected, rel=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_of_parameters_are_those_of_autograd() -> None:
    model = WIRINGS["post"]().eval()
    direction = torch.randn(3, 5, WIDTH)

    def loss() -> Tensor:
        return (model() * direction).sum()

    expected = [
        torch.cat([one.flatten() for one in torch.autograd.grad(loss(), list(block.parameters()))]).norm().item()
        for block in model.stack.blocks
    ]
    assert parameter_gradient_norms(model, loss) == {"stack": pytest.approx(expected, rel=1e-4)}


@each_wiring
def test_shares_are_variances_by_hand(name: str) -> None:
    model = WIRINGS[name]()
    found = branch_shares(model, model)
    model.eval()
    x, expected = X, []
    with torch.no_grad():
        for block in model.stack.blocks:
            step = block.step
            match step:
                case PostNorm():
                    answer, stream = step.mixer(x), x
                case PreNorm():
                    answer, stream = step.mixer(step.norm(x)), x
                case Admin():
                    answer, stream = step.mixer(x), x * step.omega
                case ReZero():
                    answer, stream = step.alpha * step.mixer(x), x
                case DeepNorm():
                    answer, stream = step.mixer(x), 1.5 * x
            expected.append((answer.var() / (stream + answer).var()).item())
            x = step(x, CTX)
    assert list(found["stack"].values()) == pytest.approx(expected, rel=1e-4)


def test_an_unknown_wiring_is_refused_and_leaves_no_hook() -> None:
    model = Model(PostNorm(LayerNorm(WIDTH), MLP(WIDTH, 8)), Parallel(LayerNorm(WIDTH), MLP(WIDTH, 8)))
    with pytest.raises(QkvError, match="Parallel"):
        branch_shares(model, model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Deep:
    """A Transformer of many layers at its start, with one batch to read and to write."""

    def __init__(self, family: str, layers: int, seed: int = 0, decoder_layers: int | None = None) -> None:
        torch.manual_seed(seed)
        sizes = TransformerSizes(
            vocabulary=50,
            width=32,
            hidden=64,
            heads=2,
            encoder_layers=layers,
            decoder_layers=decoder_layers or layers,
            dropout=0.1,
        )
        self.model = build(family, sizes).eval()
        self.source, self.target = torch.randint(0, 50, (4, 12)), torch.randint(0, 50, (4, 13))
        profile_stacks(self.model, self.forward)

    def forward(self) -> Tensor:
        return self.model(self.source, None, self.target[:, :-1])

    def loss(self) -> Tensor:
        return F.cross_entropy(self.forward().flatten(0, 1), self.target[:, 1:].flatten())


def test_gradients_vanish_in_a_deep_post_norm_decoder_and_in_no_other() -> None:
    """The first effect: of the first sub-layer's gradient next to nothing is left. [liu2020 fig.3]"""
    left = {}
    for family in ("transformer", "transformer-prenorm", "transformer-admin", "transformer-deepnorm"):
        deep = Deep(family, 16)
        norms = stream_gradient_norms(deep.model, deep.loss)
        for stack, found in norms.items():
            values = list(found.values())
            left[family, stack] = values[0] / max(values)
    assert left["transformer", "decoder"] < 1e-2
    assert min(share for key, share in left.items() if key != ("transformer", "decoder")) > 0.05


def test_shares_of_post_norm_sum_to_a_line_and_those_of_pre_norm_to_a_logarithm() -> None:
    """The second effect at its root: Σ β² is O(N) in post-norm, O(log N) in pre-norm and Admin. [liu2020 §4.2]"""
    sums = {}
    for family in ("transformer", "transformer-prenorm", "transformer-admin"):
        for layers in (6, 24):
            deep = Deep(family, layers)
            shares = branch_shares(deep.model, deep.forward)
            sums[family, layers] = sum(shares["encoder"].values())
    assert sums["transformer", 24] / sums["transformer", 6] == pytest.approx(4, rel=0.25)
    for family in ("transformer-prenorm", "transformer-admin"):
        assert sums[family, 24] / sums[family, 6] < 2.5
        assert sums[family, 24] - sums[family, 6] < 2 * math.log(4)


def test_change_of_the_output_grows_as_a_line_in_post_norm_and_hardly_in_pre_norm() -> None:
    """The second effect itself, means over starts and noises: four times the layers. [liu2020 §4.2]"""
    changes = {}
    for family in ("transformer", "transformer-prenorm"):
        for layers in (6, 24):
            found = []
            for seed in range(4):
                deep = Deep(family, layers, seed, decoder_layers=1)
                found += [output_change(deep.model, deep.forward, RandomNoise(0.01, noise)) for noise in range(2)]
            changes[family, layers] = sum(each["encoder"][-1] for each in found) / len(found)
    assert 2.5 < changes["transformer", 24] / changes["transformer", 6] < 6
    assert changes["transformer-prenorm", 24] / changes["transformer-prenorm", 6] < 2.2


def test_a_rezero_model_does_not_move_at_its_start() -> None:
    deep = Deep("transformer-rezero", 4)
    changes = output_change(deep.model, deep.forward, RandomNoise(0.5))
    assert changes == {"encoder": [0.0] * 4, "decoder": [0.0] * 4}
    shares = branch_shares(deep.model, deep.forward)
    assert all(share == 0 for found in shares.values() for share in found.values())


def test_blocks_are_what_is_perturbed() -> None:
    model = Deep("transformer", 2).model
    names = {
        name for name, parameter in model.named_parameters() if any(parameter is one for one in block_parameters(model))
    }
    assert names == {name for name, _ in model.named_parameters() if ".blocks." in name}
