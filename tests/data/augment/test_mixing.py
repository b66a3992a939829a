"""Two pictures in one, and as much of the one's target as of its pixels."""

import numpy as np
import pytest
import torch

from qkv.data.augment import Mixing
from qkv.data.augment.mixing import cut
from qkv.errors import QkvError


def numbered(count: int = 8) -> torch.Tensor:
    """Every pixel of picture i is i."""
    return torch.arange(count).float()[:, None, None, None].expand(count, 3, 20, 24).contiguous()


def test_mixup_is_its_equation() -> None:
    images = numbered()
    mixed = Mixing(mixup=0.8, cutmix=None)(images, np.random.default_rng(1))
    share = mixed.kept[:, None, None, None]
    torch.testing.assert_close(mixed.images, share * images + (1 - share) * images[mixed.partners])
    assert 0 < float(mixed.kept[0]) < 1
    assert mixed.kept.unique().numel() == 1
    assert sorted(mixed.partners.tolist()) == list(range(8))


def test_cutmix_replaces_a_rectangle_and_keeps_the_share_that_is_left() -> None:
    images = numbered()
    for seed in range(20):
        mixed = Mixing(mixup=None, cutmix=1.0)(images, np.random.default_rng(seed))
        own = (mixed.images[:, 0] == images[:, 0]).float().mean((1, 2))
        other = mixed.partners != torch.arange(8)
        torch.testing.assert_close(own[other], mixed.kept[other])
        replaced = mixed.images[other][:, 0] != images[other][:, 0]
        assert torch.equal(replaced, replaced[:1].expand_as(replaced))  # the same rectangle in all


def test_shares_follow_the_beta_distribution() -> None:
    shares = [float(Mixing(mixup=0.4, cutmix=None)(numbered(2), np.random.default_rng(i)).kept[0]) for i in range(600)]
    assert abs(np.mean(shares) - 0.5) < 0.05
    assert abs(np.var(shares) - 1 / (4 * (2 * 0.4 + 1))) < 0.02


def test_the_rectangle_has_the_share_of_the_area_when_it_is_inside() -> None:
    draw = np.random.default_rng(0)
    boxes = [cut(100, 60, 0.75, draw) for _ in range(300)]
    assert all(0 <= top <= bottom <= 100 and 0 <= left <= right <= 60 for top, left, bottom, right in boxes)
    assert max((bottom - top) * (right - left) for top, left, bottom, right in boxes) == 50 * 30


def test_both_ways_are_taken_and_some_batches_are_left_alone() -> None:
    mixing = Mixing(probability=0.5)
    kinds = {"whole": 0, "mixed": 0, "cut": 0}
    for seed in range(200):
        mixed = mixing(numbered(), np.random.default_rng(seed))
        flat = mixed.images.flatten(1)
        constant = (flat == flat[:, :1]).all()
        kinds["whole" if float(mixed.kept[0]) == 1 else "mixed" if constant else "cut"] += 1
    assert 70 < kinds["whole"] < 130
    assert min(kinds["mixed"], kinds["cut"]) > 25


def test_filler_is_left_alone() -> None:
    mixed = Mixing(mixup=1.0, cutmix=None)(numbered(), np.random.default_rng(0), count=5)
    assert mixed.partners[5:].tolist() == [5, 6, 7]
    assert sorted(mixed.partners[:5].tolist()) == list(range(5))
    torch.testing.assert_close(mixed.images[5:], numbered()[5:])


def test_numbers_that_make_no_sense_are_told() -> None:
    with pytest.raises(QkvError, match="above 0, or None"):
        Mixing(mixup=0)
    with pytest.raises(QkvError, match="from 0 to 1"):
        Mixing(probability=2)
