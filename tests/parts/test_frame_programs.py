"""What programs do to frames, against torch in double precision.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read them.
"""

from __future__ import annotations

import os

import pytest
import torch

from qkv.parts import wave

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
KIND = torch.float32 if INTERPRETED else torch.bfloat16


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 70, 12), (2, 33, 512), (2, 5, 700), (1, 40, 64)])
def test_channels_scaled_and_shifted(shape: tuple[int, int, int]) -> None:
    from qkv.parts.frame_triton import scaled

    x = torch.randn(shape, device=DEVICE, dtype=KIND)
    scale, shift = torch.randn(2, shape[0], 1, shape[2], device=DEVICE).unbind()
    for given in (x, torch.randn(shape[1], shape[0], shape[2], device=DEVICE, dtype=KIND).transpose(0, 1)):
        found, expected = scaled(given, scale, shift), given.double() * scale.double() + shift.double()
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5 if INTERPRETED else 4e-3)


@pytest.mark.gpu
def test_a_norm_of_channels_is_as_exact_as_with_gradients() -> None:
    norm = wave.ChannelNorm(40).cuda().bfloat16()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x = 3 + torch.randn(3, 500, 40, device="cuda").bfloat16()
    expected = torch.nn.functional.group_norm(x.double().mT, 40, norm.weight.double(), norm.bias.double()).mT
    ordinary = norm(x)
    with torch.no_grad():
        found = norm(x)
    assert ordinary.requires_grad
    error, usual = ((each.double() - expected).square().mean() for each in (found, ordinary))
    assert error <= usual
    torch.testing.assert_close(found.double(), expected, atol=0.02, rtol=0.02)
