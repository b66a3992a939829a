"""Keypoints learned as maps, each with a round hill where its point is. [xu2022 §3]

Shapes: b pictures, p keypoints, h height and w width of the maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.data.keypoint_rows import KeypointBatch
from qkv.errors import QkvError
from qkv.parts.precision import widened
from qkv.train.objectives.loss import Loss


def hills(points: Tensor, height: int, width: int, radius: float) -> Tensor:
    """exp(−d²/2r²), d being the distance to the point, between pixels too [huang2020 §3.2]. [b p 2] → [b p h w]

    Points are places in the frame, from 0 to 1.
    """
    across, down = points[..., 0] * (width - 1), points[..., 1] * (height - 1)  # [b p]
    columns = torch.arange(width, device=points.device) - across[..., None]  # [b p w]
    rows = torch.arange(height, device=points.device) - down[..., None]  # [b p h]
    squares = rows[..., :, None] ** 2 + columns[..., None, :] ** 2
    return torch.exp(-squares / (2 * radius**2))


@dataclass(frozen=True, kw_only=True)
class HeatmapLoss:
    """The mean squared distance of the maps of all points that are seen; the others do not count."""

    counts: ClassVar[str] = "keypoints"

    radius: float = 2.0  # of a hill, in pixels of the map

    def __post_init__(self) -> None:
        if self.radius <= 0:
            raise QkvError(f"A hill has a radius above 0, not {self.radius:g}.")

    def __call__(self, model: Any, batch: KeypointBatch) -> Loss:
        return self.of_maps(model(batch.pixels), batch.points, batch.seen, batch.count)

    def of_maps(self, maps: Tensor, points: Tensor, seen: Tensor, count: int) -> Loss:
        """maps [b p h w], points [b p 2], seen [b p]"""
        maps = widened(maps)
        wanted = hills(points, maps.shape[2], maps.shape[3], self.radius)
        squares = (maps - wanted).square().mean((2, 3))  # [b p]
        return Loss((squares * seen).sum(), max(1, count))
