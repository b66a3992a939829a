"""A GPU changes pictures as the CPU does."""

import numpy as np
import pytest
import torch

from qkv.data.augment import (
    ColourJitter,
    Flip,
    InTurn,
    Mixing,
    Noise,
    RandAugment,
    RandomErasing,
    RandomResizedCrop,
    Roll,
    Shift,
    SpecAugment,
    WaveMixing,
)
from qkv.data.augment.rand_augment import CHANGES
from qkv.data.preprocessing import Normalise
from tests.data.augment.pictures import pictures

pytestmark = pytest.mark.gpu

STEPS = {
    "crop": RandomResizedCrop((20, 20)),
    "flip": Flip(),
    "shift": Shift(3),
    "jitter": ColourJitter(hue=0.1),
    "erasing": RandomErasing(0.5),
    "all": InTurn((Shift(2), Flip(), RandAugment(2, 9, 0.5), RandomErasing(0.25))),
    **{name: RandAugment(1, 7, among=(name,)) for name in CHANGES},
}


@pytest.mark.parametrize("name", STEPS)
def test_a_gpu_gives_the_same_pictures(name: str) -> None:
    """Products of fractions may be rounded another way: then a few values are off by a step."""
    pixels = pictures(32)
    here = STEPS[name](pixels, np.random.default_rng(0))
    there = STEPS[name](pixels.cuda(), np.random.default_rng(0)).cpu()
    apart = (here.int() - there.int()).abs()
    assert (apart > 0).float().mean() < 0.02
    assert apart.max() <= (255 if name == "all" else 2)


def test_normalised_and_mixed_pictures_are_the_same() -> None:
    normalise = Normalise(1 / 255, (0.1, 0.2, 0.3), (0.3, 0.2, 0.1))
    pixels = pictures(8)
    for seed in range(4):
        here = Mixing()(normalise(pixels), np.random.default_rng(seed))
        there = Mixing()(normalise(pixels.cuda()), np.random.default_rng(seed))
        torch.testing.assert_close(there.images.cpu(), here.images)
        torch.testing.assert_close(there.kept.cpu(), here.kept)
        assert torch.equal(there.partners.cpu(), here.partners)


def test_a_gpu_gives_the_same_sounds() -> None:
    pictures_of_sounds, waves = torch.randn(8, 1, 20, 30), torch.randn(8, 4000)
    steps = InTurn((SpecAugment(bands=5, frames=7, masks=2), Noise(), Roll(4)))
    here = steps(pictures_of_sounds, np.random.default_rng(0))
    there = steps(pictures_of_sounds.cuda(), np.random.default_rng(0)).cpu()
    torch.testing.assert_close(there, here)
    mixed = [WaveMixing()(each, np.random.default_rng(0)) for each in (waves, waves.cuda())]
    torch.testing.assert_close(mixed[1].images.cpu(), mixed[0].images)
    assert torch.equal(mixed[1].partners.cpu(), mixed[0].partners)
