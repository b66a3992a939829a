"""Convolutions before the patches."""

import pytest
import torch
import torch.nn.functional as F

from qkv.errors import QkvError
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.patches import PatchEmbed, Patches
from qkv.parts.position import Learned2D
from qkv.parts.stem import ConvolutionStem


@torch.no_grad()
def test_a_stem_is_convolutions_one_after_the_other() -> None:
    """[xiao2021]: 3 × 3, at every second place, each twice as wide as the one before; ours with a norm of the map."""
    stem, images = ConvolutionStem(3, 16, 3), torch.randn(2, 3, 20, 24)
    x = images
    for number, width in enumerate((4, 8, 16)):
        part = stem.convolutions[number]
        x = F.conv2d(x, part.convolution.weight, stride=2, padding=1)
        assert x.shape[1] == width
        flat = x.flatten(1)
        x = ((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True, correction=0)).view_as(x)
        x = F.gelu(x * part.norm.weight[:, None, None] + part.norm.bias[:, None, None])
    torch.testing.assert_close(stem(images), x, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("height", "width", "count"), [(8, 8, 1), (28, 28, 3), (9, 30, 2), (1, 5, 2), (224, 224, 4)])
@torch.no_grad()
def test_the_map_is_as_large_as_it_says(height: int, width: int, count: int) -> None:
    stem = ConvolutionStem(1, 16, count)
    assert stem(torch.randn(1, 1, height, width)).shape == (1, 16, *stem.size(height, width))
    assert stem.stride == 2**count


@torch.no_grad()
def test_what_a_picture_becomes_does_not_depend_on_its_company() -> None:
    stem, images = ConvolutionStem(3, 16, 2), torch.randn(5, 3, 12, 12)
    torch.testing.assert_close(stem(images)[:1], stem(images[:1]))


@torch.no_grad()
def test_patches_are_those_of_the_map() -> None:
    stem = ConvolutionStem(3, 8, 2)
    embed = PatchEmbed(Patches(8, 8, 1), Learned2D(3, 4, 8, 1), ("class_token",), stem=stem)
    images = torch.randn(2, 3, 12, 15)
    ctx = Context(tokens=Tokens(13))
    assert (embed.grid(images), embed.count(images), embed.channels, embed.stride) == ((3, 4), 13, 3, 4)
    assert embed.filters.shape == (4, 3, 3, 3)
    tokens = embed.patches(stem(images)) + embed.position.weight[1:]
    torch.testing.assert_close(embed(images, ctx)[:, 1:], tokens)
    with pytest.raises(QkvError, match="3 channels"):
        embed(torch.randn(2, 8, 12, 15), ctx)


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(QkvError, match="divides by 4, and 18 does not"):
        ConvolutionStem(3, 18, 3)
    with pytest.raises(QkvError, match="has seen its neighbours"):
        PatchEmbed(Patches(8, 8, 1), Learned2D(3, 3, 8), stem=ConvolutionStem(3, 8, 1), hides=True)
