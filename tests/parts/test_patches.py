"""Pictures become tokens: patches by a matrix, those before them, and where each stands."""

import pytest
import torch

from qkv.data.patch_hiding import HiddenPatches
from qkv.errors import QkvError
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.norm import LayerNorm
from qkv.parts.patches import PatchEmbed, Patches
from qkv.parts.position import Learned2D

CONTEXT = Context(tokens=Tokens(1))


@torch.no_grad()
def test_a_patch_is_flattened_and_multiplied_by_a_matrix() -> None:
    """[dosovitskiy2021 eq.1]: row by row of the grid, and in a patch channel by channel."""
    patches, images = Patches(3, 10, 4), torch.randn(2, 3, 8, 12)
    matrix = patches.weight.reshape(10, 3 * 4 * 4)
    found = patches(images)
    assert found.shape == (2, 6, 10)
    for number, (row, column) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]):
        patch = images[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten(1)
        torch.testing.assert_close(found[:, number], patch @ matrix.T + patches.bias)


@pytest.mark.parametrize(
    ("height", "width", "patch", "stride", "grid"),
    [
        (224, 224, 16, None, (14, 14)),
        (128, 1024, 16, 10, (12, 101)),
        (9, 14, (3, 5), (2, 3), (4, 4)),
        (15, 17, 4, None, (3, 4)),
        (4, 4, 4, 1, (1, 1)),
    ],
)
@torch.no_grad()
def test_the_grid_is_what_comes_out(height, width, patch, stride, grid) -> None:
    patches = Patches(1, 2, patch, stride)
    assert patches.grid(height, width) == grid
    assert patches(torch.randn(1, 1, height, width)).shape == (1, grid[0] * grid[1], 2)


def test_patches_with_gaps_are_refused() -> None:
    with pytest.raises(QkvError, match="would leave out what lies between"):
        Patches(1, 2, 4, 5)


@torch.no_grad()
def test_prefix_positions_dropout_and_norm_follow_each_other() -> None:
    embed = PatchEmbed(Patches(3, 8, 4), Learned2D(2, 2, 8, 2), ("class_token", "other_token"), norm=LayerNorm(8))
    images = torch.randn(2, 3, 8, 8)
    tokens = torch.stack((embed.class_token, embed.other_token)).expand(2, -1, -1)
    expected = embed.norm(torch.cat((tokens, embed.patches(images)), 1) + embed.position.weight)
    torch.testing.assert_close(embed(images, CONTEXT), expected)
    assert embed.count(images) == 6
    wider = torch.randn(2, 3, 8, 16)
    expected = embed.norm(torch.cat((tokens, embed.patches(wider)), 1) + embed.position(2, 4))
    torch.testing.assert_close(embed(wider, CONTEXT), expected)


def test_every_token_before_the_patches_has_a_position() -> None:
    with pytest.raises(QkvError, match="1 tokens before the patches, and 0 positions"):
        PatchEmbed(Patches(3, 8, 4), Learned2D(2, 2, 8), ("class_token",))


@torch.no_grad()
def test_masks_and_other_patches_stand_where_patches_are_hidden() -> None:
    embed = PatchEmbed(Patches(3, 8, 4), Learned2D(2, 2, 8, 1), ("class_token",), hides=True)
    images = torch.randn(2, 3, 8, 8)
    masked = torch.tensor([[True, False, False, False], [False, False, False, True]])
    sources = torch.tensor([[0, 6, 2, 3], [4, 5, 6, 7]])  # the second patch is the third of the other picture
    hidden = HiddenPatches(masked, sources, torch.tensor([0, 1, 7]))
    patches = embed.patches(images)
    expected = patches.clone()
    expected[0, 0] = expected[1, 3] = embed.mask_token
    expected[0, 1] = patches[1, 2]
    found = embed(images, CONTEXT, hidden)
    torch.testing.assert_close(found[:, 1:], expected + embed.position.weight[1:])
    torch.testing.assert_close(found[:, :1], embed(images, CONTEXT)[:, :1])
    with pytest.raises(QkvError, match="build it with the head 'masked'"):
        PatchEmbed(Patches(3, 8, 4), Learned2D(2, 2, 8))(images, CONTEXT, hidden)
