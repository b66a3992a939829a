"""Rectangles of noise."""

import numpy as np
import pytest
import torch

from qkv.data.augment import RandomErasing
from qkv.errors import QkvError


def test_rectangles_have_the_area_and_the_shape_of_the_paper() -> None:
    boxes = RandomErasing(1.0).boxes(3000, 64, 64, np.random.default_rng(0)).astype(float)
    top, left, height, width = boxes[boxes[:, 2] > 0].T
    assert len(top) > 2800
    assert (top + height).max() <= 64
    assert (left + width).max() <= 64
    share, shape = height * width / 64**2, height / width
    assert 0.015 < share.min() < 0.03
    assert 0.3 < share.max() < 0.42
    assert 0.25 < shape.min() < 0.4
    assert 2.5 < shape.max() < 4


def test_only_the_rectangle_is_noise_and_only_in_some_pictures() -> None:
    pixels = torch.full((400, 3, 16, 16), 77, dtype=torch.uint8)
    made = RandomErasing(0.25)(pixels, np.random.default_rng(0))
    changed = (made != 77).any(1)  # [b h w]
    erased = changed.flatten(1).any(1)
    assert 60 < int(erased.sum()) < 140
    for mask in changed[erased]:
        rows, columns = mask.any(1), mask.any(0)
        inside = mask[rows][:, columns].float().mean()
        assert inside > 0.9  # noise may be the old value here and there
        assert int(rows.sum()) == int(rows.nonzero().max() - rows.nonzero().min()) + 1
    assert made[made != 77].float().std() > 60
    assert torch.equal(made, RandomErasing(0.25)(pixels, np.random.default_rng(0)))


def test_none_and_all_can_be_asked_for() -> None:
    pixels = torch.zeros(20, 1, 32, 32, dtype=torch.uint8)
    assert torch.equal(RandomErasing(0.0)(pixels, np.random.default_rng(0)), pixels)
    assert RandomErasing(1.0)(pixels, np.random.default_rng(0)).flatten(1).any(1).float().mean() > 0.9
    with pytest.raises(QkvError, match="from 0 to 1"):
        RandomErasing(2.0)
