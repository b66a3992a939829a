"""Mean colours of patches in three bits a channel."""

import numpy as np
import torch

from qkv.data.patch_colours import colours, middle_of, patch_colours


def test_there_are_512_colours_and_8_greys() -> None:
    assert (colours(3), colours(1)) == (512, 8)


def test_a_number_is_the_three_high_bits_of_each_mean() -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 9, 13)).astype(np.uint8))
    found = patch_colours(pixels, (4, 3))
    assert found.shape == (2, 2 * 4)
    for picture in range(2):
        for number in range(8):
            row, column = divmod(number, 4)
            patch = pixels[picture, :, 4 * row : 4 * row + 4, 3 * column : 3 * column + 3].double().mean((1, 2))
            red, green, blue = (int(mean) >> 5 for mean in patch)
            assert found[picture, number] == red << 6 | green << 3 | blue


def test_the_brightest_and_the_darkest_have_numbers() -> None:
    extremes = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 4, 4)
    assert patch_colours(extremes, (4, 4)).tolist() == [[0], [511]]


def test_the_middle_of_a_colour_has_its_number() -> None:
    numbers = torch.arange(512)
    pixels = middle_of(numbers, 3)[:, :, None, None].expand(-1, -1, 2, 2)
    assert torch.equal(patch_colours(pixels, (2, 2))[:, 0], numbers)
    assert middle_of(torch.tensor([7, 0]), 1).tolist() == [[240], [16]]
