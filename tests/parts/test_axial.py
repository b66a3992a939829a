"""Axial positions against the grid written out."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.axial import Axial


@pytest.mark.parametrize(("grid", "widths"), [((3, 5), (2, 4)), ((2, 3, 4), (1, 2, 3)), ((6,), (4,))])
def test_a_position_is_its_place_on_each_axis(grid: tuple[int, ...], widths: tuple[int, ...]) -> None:
    axial = Axial(grid, widths)
    whole = torch.cat([table.expand(*grid, width) for table, width in zip(axial.weights, widths, strict=True)], -1)
    whole = whole.reshape(-1, sum(widths))  # line by line
    positions = torch.randperm(len(whole))
    assert torch.equal(axial(positions, len(whole)), whole[positions])
    rows = positions.expand(2, -1)
    assert torch.equal(axial(rows, len(whole)), whole[rows])


def test_tables_are_as_small_as_their_axes() -> None:
    assert sum(parameter.numel() for parameter in Axial((512, 1024), (64, 192)).parameters()) == 512 * 64 + 1024 * 192


def test_a_row_longer_than_the_grid_is_refused() -> None:
    with pytest.raises(QkvError, match="grid of 15 positions and the input needs 16"):
        Axial((3, 5), (2, 4))(torch.arange(16), 16)
    with pytest.raises(QkvError, match="as many widths"):
        Axial((3, 5), (6,))
