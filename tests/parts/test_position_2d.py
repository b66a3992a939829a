import math

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.position_2d import Sinusoidal2D


def test_a_place_is_a_share_of_the_picture():
    """The last row and column are 2π, whatever the size; half way is π."""
    for rows, columns in ((4, 6), (10, 2)):
        found = Sinusoidal2D(8)(torch.ones(1, rows, columns, dtype=torch.bool)).unflatten(1, (rows, columns))
        row, column = found[0, rows // 2 - 1, columns - 1, :4], found[0, rows // 2 - 1, columns - 1, 4:]
        torch.testing.assert_close(row, _pairs(math.pi), atol=1e-4, rtol=0)
        torch.testing.assert_close(column, _pairs(2 * math.pi), atol=1e-4, rtol=0)


def _pairs(angle: float) -> torch.Tensor:
    slow = angle / 10000**0.5
    return torch.tensor([math.sin(angle), math.cos(angle), math.sin(slow), math.cos(slow)])


def test_padding_does_not_move_what_is_there():
    alone = Sinusoidal2D(16)(torch.ones(1, 3, 5, dtype=torch.bool)).unflatten(1, (3, 5))
    real = torch.zeros(1, 7, 9, dtype=torch.bool)
    real[:, :3, :5] = True
    beside = Sinusoidal2D(16)(real).unflatten(1, (7, 9))
    torch.testing.assert_close(beside[:, :3, :5], alone)
    assert beside.isfinite().all()


def test_every_place_has_positions_of_its_own():
    found = Sinusoidal2D(32)(torch.ones(1, 9, 11, dtype=torch.bool))[0]
    distances = torch.cdist(found, found) + torch.eye(99) * 9
    assert distances.min() > 0.05


def test_a_width_that_cannot_be_shared_is_refused():
    with pytest.raises(QkvError, match="must divide by 4"):
        Sinusoidal2D(6)
