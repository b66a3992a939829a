"""Colours change as Pillow changes them, to the last bit."""

import colorsys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from qkv.data.augment import ColourJitter, colour
from qkv.errors import QkvError
from tests.data.augment.pictures import pictures


def by_pillow(pixels: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    images = [change(Image.fromarray(each.permute(1, 2, 0).numpy())) for each in pixels]
    return torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images])


ENHANCERS = {
    colour.brightness: ImageEnhance.Brightness,
    colour.contrast: ImageEnhance.Contrast,
    colour.saturation: ImageEnhance.Color,
    colour.sharpness: ImageEnhance.Sharpness,
}


@pytest.mark.parametrize("change", ENHANCERS, ids=lambda change: change.__name__)
@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.5, 1.9])
def test_enhancing_is_pillows(change: Callable, factor: float) -> None:
    pixels = pictures()
    expected = by_pillow(pixels, lambda image: ENHANCERS[change](image).enhance(factor))
    assert torch.equal(change(pixels, torch.full((4,), factor)), expected)


@pytest.mark.parametrize("bits", [1, 4, 7, 8])
def test_posterising_is_pillows(bits: int) -> None:
    pixels = pictures()
    expected = by_pillow(pixels, lambda image: ImageOps.posterize(image, bits))
    assert torch.equal(colour.posterised(pixels, torch.full((4,), bits)), expected)


@pytest.mark.parametrize("threshold", [0, 77, 255, 256])
def test_solarising_is_pillows(threshold: int) -> None:
    pixels = pictures()
    expected = by_pillow(pixels, lambda image: ImageOps.solarize(image, threshold))
    assert torch.equal(colour.solarised(pixels, torch.full((4,), float(threshold))), expected)


def test_spreading_is_pillows() -> None:
    pixels = pictures()
    pixels[1, 2] = 77  # a channel of one value
    pixels[2, :, :, 5:] = 200  # few values
    assert torch.equal(colour.autocontrast(pixels), by_pillow(pixels, ImageOps.autocontrast))
    assert torch.equal(colour.equalised(pixels), by_pillow(pixels, ImageOps.equalize))
    large = pictures(2, 120, 110)
    assert torch.equal(colour.equalised(large), by_pillow(large, ImageOps.equalize))


def test_every_picture_has_its_own_factor() -> None:
    pixels = pictures()
    changed = colour.brightness(pixels, torch.tensor([0.0, 1.0, 0.5, 1.0]))
    assert not changed[0].any()
    assert torch.equal(changed[1], pixels[1])
    assert torch.equal(changed[2], (pixels[2].float() * 0.5).byte())


@pytest.mark.parametrize("turn", [0.0, 0.1, -0.3, 0.5])
def test_hues_turn_as_on_the_circle_of_colours(turn: float) -> None:
    pixels = pictures(1, 6, 7)
    changed = colour.turned(pixels, torch.tensor([turn]))[0].permute(1, 2, 0).reshape(-1, 3)
    for old, new in zip(pixels[0].permute(1, 2, 0).reshape(-1, 3), changed, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(old / 255).tolist())
        expected = torch.tensor(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)) * 255
        assert (new.float() - expected).abs().max() <= 0.51


def test_greys_stay_greys() -> None:
    greys = pictures(channels=1)
    assert torch.equal(colour.saturation(greys, torch.full((4,), 0.2)), greys)
    assert torch.equal(colour.turned(greys, torch.full((4,), 0.2)), greys)
    assert colour.sharpness(greys, torch.zeros(4)).shape == greys.shape


def test_jitter_is_within_its_bounds_and_the_same_for_the_same_seed() -> None:
    flat = torch.full((64, 3, 4, 4), 100, dtype=torch.uint8)
    jitter = ColourJitter(brightness=0.4, contrast=0, saturation=0)
    changed = jitter(flat, np.random.default_rng(0)).float()
    assert changed.min() >= 60 - 1
    assert changed.max() <= 140
    assert changed.std() > 10
    whole = ColourJitter(hue=0.1)
    first, again, other = (whole(pictures(), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(QkvError, match="half of the circle"):
        ColourJitter(hue=0.7)
