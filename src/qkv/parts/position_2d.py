"""Where a token stands in a picture, by sines and cosines of its row and of its column. [carion2020 §A.4]

Shapes: b pictures, r rows and k columns of a map, s = r·k tokens, d width of the stream.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.position import interleaved
from qkv.parts.spec import Depends

TINY = 1e-6  # what keeps a column without a real token from a division by zero


class Sinusoidal2D(nn.Module):
    """Half of the width says the row, the other half the column, each as the sinusoids of a row of text do.

    A place is a share of the picture's own height or width, from above 0 to 2π, whatever its padding.
    DIFFERS [carion2020]: the paper does not say that places are shares; its code does.
    """

    depends_on = Depends("a_half")

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 4:
            raise QkvError(
                f"Positions in a picture are pairs of sines and cosines twice, so width {width} must divide by 4."
            )
        self.a_half = width // 2

    def forward(self, real: Tensor) -> Tensor:
        """real [b r k] bool, False where a map is padding → [b r·k d] float32"""
        rows, columns = real.float().cumsum(1), real.float().cumsum(2)  # [b r k]
        rows = rows / (rows[:, -1:] + TINY) * (2 * math.pi)
        columns = columns / (columns[:, :, -1:] + TINY) * (2 * math.pi)
        rates = 10000.0 ** (-torch.arange(0, self.a_half, 2, device=real.device) / self.a_half)  # [d/4]
        angles = torch.stack((rows, columns), -1)[..., None] * rates  # [b r k 2 d/4]
        return interleaved(angles.sin(), angles.cos()).flatten(3).flatten(1, 2)
