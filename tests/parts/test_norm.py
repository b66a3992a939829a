"""Norms against torch's own and against their formulas."""

import pytest
import torch
from torch import Tensor, nn

from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.norm import LayerNorm, RMSNorm, SequenceBatchNorm

WIDTH = 6


def random_affine(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    return norm


def rows(lengths: list[int], size: int = 5) -> Context:
    return Context(tokens=Tokens.padded(torch.tensor(lengths), size))


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_the_formula(bias: bool) -> None:
    norm, x = random_affine(LayerNorm(WIDTH, epsilon=1e-3, bias=bias)), torch.randn(2, 3, WIDTH) * 5 + 2
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    expected = (x - mean) / (variance + 1e-3).sqrt() * norm.weight + (norm.bias if bias else 0)
    torch.testing.assert_close(norm(x), expected)


def test_layer_norm_is_that_of_torch() -> None:
    ours, reference, x = random_affine(LayerNorm(WIDTH)), nn.LayerNorm(WIDTH), torch.randn(2, 3, WIDTH)
    reference.load_state_dict(ours.state_dict())
    assert torch.equal(ours(x, rows([3, 1], 3)), reference(x))


def test_rms_norm_is_the_formula_and_that_of_torch() -> None:
    ours, reference = random_affine(RMSNorm(WIDTH, epsilon=1e-3)), nn.RMSNorm(WIDTH, eps=1e-3)
    reference.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, WIDTH) * 5 + 2
    torch.testing.assert_close(ours(x), reference(x))
    torch.testing.assert_close(ours(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * ours.weight)


def test_rms_norm_of_half_precision_is_computed_in_full() -> None:
    """Squares of 300 overflow float16; their mean in float32 does not."""
    x = torch.full((1, WIDTH), 300.0, dtype=torch.float16)
    found = RMSNorm(WIDTH).half()(x)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, torch.ones_like(x))


def test_batch_norm_without_padding_is_that_of_torch() -> None:
    ours, reference = random_affine(SequenceBatchNorm(WIDTH)), nn.BatchNorm1d(WIDTH)
    with torch.no_grad():
        reference.weight.copy_(ours.weight)
        reference.bias.copy_(ours.bias)
    ctx = Context(tokens=Tokens(5))
    for _ in range(3):
        x = torch.randn(4, 5, WIDTH) * 3 + 1
        torch.testing.assert_close(ours(x, ctx), reference(x.flatten(0, 1)).view_as(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.running_mean, reference.running_mean)
    torch.testing.assert_close(ours.running_variance, reference.running_var)
    ours.eval()
    reference.eval()
    torch.testing.assert_close(ours(x, ctx), reference(x.flatten(0, 1)).view_as(x), atol=1e-5, rtol=1e-5)


def test_batch_norm_counts_real_tokens_only() -> None:
    """Its statistics, running ones too, are those torch computes of the real tokens alone."""
    ours, reference = SequenceBatchNorm(WIDTH), nn.BatchNorm1d(WIDTH)
    x, ctx = torch.randn(3, 5, WIDTH), rows([5, 2, 1])
    real = ctx.tokens.documents > 0
    x[~real] = 1e4
    torch.testing.assert_close(ours(x, ctx)[real], reference(x[real]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.running_mean, reference.running_mean)
    torch.testing.assert_close(ours.running_variance, reference.running_var)


def test_batch_norm_gives_the_gradients_of_torch() -> None:
    ours, reference = SequenceBatchNorm(WIDTH), nn.BatchNorm1d(WIDTH)
    ctx = rows([5, 2, 1])
    real = ctx.tokens.documents > 0
    first, pull = torch.randn(3, 5, WIDTH, requires_grad=True), torch.randn(int(real.sum()), WIDTH)
    second = first.detach().clone().requires_grad_()
    ours(first, ctx)[real].backward(pull)
    reference(second[real]).backward(pull)
    torch.testing.assert_close(first.grad, second.grad, atol=1e-5, rtol=1e-4)


def test_batch_norm_looks_at_other_rows_and_layer_norm_does_not() -> None:
    """What the lectures contrast: change one row, and see whether another row's answer changes."""
    x = torch.randn(2, 3, WIDTH)
    y = torch.stack((x[0], torch.randn(3, WIDTH)))
    ctx = Context(tokens=Tokens(3))

    def first_row(norm: nn.Module, batch: Tensor) -> Tensor:
        return norm(batch, ctx)[0]

    assert torch.equal(first_row(LayerNorm(WIDTH), x), first_row(LayerNorm(WIDTH), y))
    assert not torch.allclose(first_row(SequenceBatchNorm(WIDTH), x), first_row(SequenceBatchNorm(WIDTH), y))
    calm = SequenceBatchNorm(WIDTH).eval()
    assert torch.equal(first_row(calm, x), first_row(calm, y))


def test_batch_norm_of_half_precision_keeps_its_running_statistics_up() -> None:
    norm, x = SequenceBatchNorm(WIDTH).to(torch.bfloat16), torch.randn(2, 3, WIDTH).bfloat16() + 3
    assert norm(x, Context(tokens=Tokens(3))).dtype == torch.bfloat16
    assert (norm.running_mean > 0).all()


def test_a_batch_of_padding_alone_leaves_no_trace_in_the_statistics() -> None:
    norm = SequenceBatchNorm(4)
    y = norm(torch.randn(2, 3, 4), Context(tokens=Tokens.padded(torch.tensor([0, 0]), 3)))
    assert y.isfinite().all()
    assert torch.equal(norm.running_mean, torch.zeros(4))
    assert torch.equal(norm.running_variance, torch.ones(4))


def test_norms_of_double_precision_are_computed_in_it() -> None:
    """Features that differ by 1e-9 around 1: in single precision they are all the same."""
    x, ctx = 1 + 1e-9 * torch.randn(2, 3, WIDTH, dtype=torch.float64), Context(tokens=Tokens(3))
    norm, reference = SequenceBatchNorm(WIDTH, epsilon=1e-24).double(), nn.BatchNorm1d(WIDTH, eps=1e-24).double()
    torch.testing.assert_close(norm(x, ctx), reference(x.flatten(0, 1)).view_as(x), rtol=1e-5, atol=1e-5)
    norm.eval()
    reference.eval()
    torch.testing.assert_close(norm(x, ctx), reference(x.flatten(0, 1)).view_as(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        RMSNorm(WIDTH).double()(x), nn.RMSNorm(WIDTH, eps=1e-6).double()(x), rtol=1e-14, atol=1e-14
    )
