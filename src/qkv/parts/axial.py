"""Positions of very long rows: a row is written line by line into a grid, and each axis has a table.

As in the code published with Reformer [kitaev2020]; the paper does not speak of it.

Shapes: b rows, s slots, d width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.spec import Depends


class Axial(nn.Module):
    """One learned vector a line and one a column, side by side: 512 × 1,024 positions need 1,536 vectors.

    `grid` is the number of places along each axis, `widths` what each adds to the width of the stream.
    """

    depends_on = Depends("grid", "weights")

    def __init__(self, grid: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        if len(grid) != len(widths):
            raise QkvError(f"A grid of {len(grid)} axes needs as many widths, not {len(widths)}.")
        self.grid = tuple(grid)
        # Each table has 1 for the other axes, so that all of them would broadcast to the grid.
        self.weights = nn.ParameterList(
            torch.randn(*(length if axis == own else 1 for axis, length in enumerate(grid)), width) * 0.02
            for own, width in enumerate(widths)
        )

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """positions [b s] or [s], each below `longest` → [b s d] or [s d]"""
        if longest > (places := math.prod(self.grid)):
            raise QkvError(f"This model has a grid of {places} positions and the input needs {longest}.")
        parts = []
        for length, table in zip(self.grid[::-1], list(self.weights)[::-1], strict=True):  # columns turn fastest
            parts.append(table.reshape(length, -1)[positions % length])
            positions = positions // length
        return torch.cat(parts[::-1], -1)

    def extra_repr(self) -> str:
        return " × ".join(map(str, self.grid))
