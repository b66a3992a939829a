"""Changes from a list, each as strong as asked for."""

import numpy as np
import pytest
import torch

from qkv.data.augment import InTurn, RandAugment, RandomErasing
from qkv.data.augment.rand_augment import CHANGES
from qkv.errors import QkvError
from tests.data.augment.pictures import pictures


def test_the_list_is_that_of_the_paper() -> None:
    assert set(CHANGES) == {
        "identity", "autocontrast", "equalize", "rotate", "solarize", "color", "posterize", "contrast", "brightness",
        "sharpness", "shear-x", "shear-y", "translate-x", "translate-y",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {"autocontrast", "equalize"}))
def test_a_magnitude_of_nothing_changes_nothing(name: str) -> None:
    pixels = pictures()
    assert torch.equal(RandAugment(3, 0, among=(name,))(pixels, np.random.default_rng(0)), pixels)


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {"identity", "autocontrast", "equalize"}))
def test_a_greater_magnitude_changes_more(name: str) -> None:
    pixels = pictures(32)

    def distance(magnitude: float) -> float:
        changed = RandAugment(1, magnitude, among=(name,))(pixels, np.random.default_rng(0))
        return float((changed.float() - pixels.float()).abs().mean())

    assert 0 < distance(4) < distance(10)


def test_signs_go_both_ways() -> None:
    pixels = torch.full((200, 3, 4, 4), 100, dtype=torch.uint8)
    changed = RandAugment(1, 5, among=("brightness",))(pixels, np.random.default_rng(0))[:, 0, 0, 0]
    assert set(changed.tolist()) <= {54, 55, 144, 145}
    assert 60 < int((changed > 100).sum()) < 140


def test_every_picture_gets_changes_of_its_own_and_the_seed_decides() -> None:
    same = pictures(1).repeat(64, 1, 1, 1)
    first = RandAugment(2, 9, 0.5)(same, np.random.default_rng(1))
    assert len(torch.unique(first.flatten(1), dim=0)) > 40
    assert torch.equal(first, RandAugment(2, 9, 0.5)(same, np.random.default_rng(1)))
    assert not torch.equal(first, RandAugment(2, 9, 0.5)(same, np.random.default_rng(2)))
    assert torch.equal(same, pictures(1).repeat(64, 1, 1, 1))  # what was given is left as it was


def test_greys_can_be_changed_too() -> None:
    greys = pictures(32, channels=1)
    assert RandAugment(2, 9)(greys, np.random.default_rng(0)).shape == greys.shape


def test_steps_come_in_turn() -> None:
    pixels = pictures()
    steps = (RandAugment(1, 9), RandomErasing(1.0))
    draw = np.random.default_rng(5)
    expected = steps[1](steps[0](pixels, draw), draw)
    assert torch.equal(InTurn(steps)(pixels, np.random.default_rng(5)), expected)


def test_what_is_not_on_the_list_is_told() -> None:
    with pytest.raises(QkvError, match="no change 'invert'"):
        RandAugment(among=("invert",))
    with pytest.raises(QkvError, match="from 0 to 10"):
        RandAugment(magnitude=28)
