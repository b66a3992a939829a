"""Boxes as four numbers, and how much two of them have in common.

A box is (centre x, centre y, width, height) as a model says it, or (x0, y0, x1, y1), its corners. All functions take
boxes of any shapes [… 4] that broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-9  # an area below it is none: two empty boxes have nothing in common


def corners(boxes: Tensor) -> Tensor:
    """(centre x, centre y, width, height) → (x0, y0, x1, y1)"""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat((centre - size / 2, centre + size / 2), -1)


def centres(boxes: Tensor) -> Tensor:
    """(x0, y0, x1, y1) → (centre x, centre y, width, height)"""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((first + last) / 2, last - first), -1)


def area(boxes: Tensor) -> Tensor:
    """Of corners. [… 4] → […]"""
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return size[..., 0] * size[..., 1]


def overlap_and_union(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """What two boxes share, as a share of what they cover together; and the latter. Corners [… 4], [… 4] → […], […]"""
    first, last = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    shared = area(torch.cat((first, last), -1))
    union = area(one) + area(other) - shared
    return shared / union.clamp(min=TINY), union


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union. Corners [… 4], [… 4] → […]"""
    return overlap_and_union(one, other)[0]


def generalised_overlap(one: Tensor, other: Tensor) -> Tensor:
    """Overlap, less the share of the smallest box around both that neither covers: far apart is worse than near.

    [rezatofighi2019 alg.1]. Corners [… 4], [… 4] → […], from −1 to 1
    """
    share, union = overlap_and_union(one, other)
    first, last = torch.minimum(one[..., :2], other[..., :2]), torch.maximum(one[..., 2:], other[..., 2:])
    around = area(torch.cat((first, last), -1)).clamp(min=TINY)
    return share - (around - union) / around
