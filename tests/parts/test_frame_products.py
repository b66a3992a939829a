"""Convolutions over frames are the same as matrix products."""

import pytest
import torch
import torch.nn.functional as F

from qkv.parts.frame_products import (
    grouped_convolution,
    grouped_products,
    strided_convolution,
    strided_products,
)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "frames"), [(1, 10, 5, 57), (40, 3, 2, 21), (40, 2, 2, 20), (40, 5, 2, 12)]
)
def test_a_strided_convolution(channels: int, kernel: int, stride: int, frames: int, bias: bool) -> None:
    x = torch.randn(3, frames, channels, requires_grad=True)
    weight = torch.randn(7, channels, kernel, requires_grad=True)
    added = torch.randn(7, requires_grad=True) if bias else None
    expected = F.conv1d(x.transpose(1, 2), weight, added, stride).transpose(1, 2)
    pull = torch.randn_like(expected)
    given = [each for each in (x, weight, added) if each is not None]
    wanted = torch.autograd.grad(expected, given, pull)
    for ours in (strided_products, strided_convolution):
        found = ours(x, weight, added, stride)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        for mine, theirs in zip(torch.autograd.grad(found, given, pull), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_a_strided_convolution_by_autocast(bias: bool) -> None:
    """Weights are wider than what comes, and sums in place are not narrowed by autocast."""
    x, weight = torch.randn(3, 21, 40).bfloat16(), torch.randn(7, 40, 3, requires_grad=True)
    added = torch.randn(7) if bias else None
    with torch.autocast("cpu", torch.bfloat16):
        found = strided_products(x, weight, added, 2)
    expected = F.conv1d(x.float().transpose(1, 2), weight, added, 2).transpose(1, 2)
    torch.testing.assert_close(found.float(), expected, atol=0.3, rtol=2e-2)
    found.sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("kernel", [5, 6])
@pytest.mark.parametrize("frames", [3, 16, 37])
def test_a_grouped_convolution(kernel: int, frames: int) -> None:
    x, weight = torch.randn(2, frames, 12, requires_grad=True), torch.randn(12, 4, kernel, requires_grad=True)
    bias = torch.randn(12, requires_grad=True)
    expected = F.conv1d(x.transpose(1, 2), weight, bias, padding=kernel // 2, groups=3)[..., :frames].transpose(1, 2)
    pull = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, weight, bias), pull)
    for ours in (grouped_products, grouped_convolution):
        found = ours(x, weight, bias, 3)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        for mine, theirs in zip(torch.autograd.grad(found, (x, weight, bias), pull), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
def test_both_on_a_gpu() -> None:
    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").bfloat16()

    x, weight = noise(2, 400, 64), noise(96, 64, 3)
    expected = F.conv1d(x.float().transpose(1, 2), weight.float(), None, 2).transpose(1, 2)
    torch.testing.assert_close(strided_convolution(x, weight, None, 2).float(), expected, atol=0.3, rtol=2e-2)
    weight, bias = noise(64, 16, 32), noise(64)
    expected = F.conv1d(x.float().transpose(1, 2), weight.float(), bias.float(), padding=16, groups=4)
    expected = expected[..., :400].transpose(1, 2)
    torch.testing.assert_close(grouped_convolution(x, weight, bias, 4).float(), expected, atol=0.5, rtol=2e-2)
