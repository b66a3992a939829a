"""Where the pixels of a picture go: crops, mirrors, shifts, and straight maps of the plane.

Shapes: b pictures, c channels, h height, w width, i places along a new side, j along an old one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.augment.steps import beside, rounded
from qkv.data.token_rows import Ints
from qkv.errors import QkvError

TRIES = 10
REACH = {"bilinear": 1.0, "bicubic": 2.0}  # pixels that a filter reaches to each side
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RandomResizedCrop:
    """A part of each picture, of any place, size and shape, resized to `size`. [szegedy2015 §6]"""

    size: tuple[int, int]  # height, width
    area: tuple[float, float] = (0.08, 1.0)  # least and greatest share of the picture
    shape: tuple[float, float] = (3 / 4, 4 / 3)  # least and greatest width for a height of one
    filter: str = "bicubic"

    def __post_init__(self) -> None:
        if not (0 < self.area[0] <= self.area[1] <= 1 and 0 < self.shape[0] <= self.shape[1]):
            raise QkvError(f"A crop needs shares of the area from 0 to 1 and shapes above 0, not {self}.")
        if self.filter not in REACH:
            raise QkvError(f"A crop is resized by {' or '.join(REACH)}, not by {self.filter!r}.")

    def __call__(self, pixels: Tensor, draw: np.random.Generator) -> Tensor:
        boxes = self.boxes(len(pixels), pixels.shape[-2], pixels.shape[-1], draw)
        return resized_boxes(pixels, boxes, self.size, self.filter)

    def boxes(self, count: int, height: int, width: int, draw: np.random.Generator) -> Ints:
        """Top, left, height and width of each crop: of several that are drawn the first that fits. [b 4]"""
        areas = draw.uniform(*self.area, (count, TRIES)) * height * width
        shapes = np.exp(draw.uniform(math.log(self.shape[0]), math.log(self.shape[1]), (count, TRIES)))
        corners = draw.random((count, 2))
        widths, heights = np.rint(np.sqrt(areas * shapes)), np.rint(np.sqrt(areas / shapes))  # [b tries]
        fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
        first = fits.argmax(1)
        chosen = np.stack([each[np.arange(count), first] for each in (heights, widths)], 1)  # [b 2]
        whole = (  # where none fits: the largest part of a shape that is allowed
            min(height, round(width / self.shape[0])),
            min(width, round(height * self.shape[1])),
        )
        none = ~fits.any(1)
        chosen[none] = whole
        room = np.array([height, width]) - chosen
        corner = np.floor(corners * (room + 1))
        corner[none] = room[none] // 2
        return np.concatenate([corner, chosen], 1).astype(np.int64)


@dataclass(frozen=True)
class Flip:
    """Left and right change places."""

    probability: float = 0.5

    def __call__(self, pixels: Tensor, draw: np.random.Generator) -> Tensor:
        mirrored = beside(draw.random(len(pixels)) < self.probability, pixels)
        return torch.where(mirrored[:, None, None, None], pixels.flip(-1), pixels)


@dataclass(frozen=True)
class Shift:
    """Moved by up to `most` pixels each way, with black where nothing was: what suits very small pictures."""

    most: int = 4

    def __call__(self, pixels: Tensor, draw: np.random.Generator) -> Tensor:
        moves = beside(draw.integers(0, 2 * self.most + 1, (2, len(pixels), 1)), pixels)  # [2 b 1]
        height, width = pixels.shape[-2:]
        padded = F.pad(pixels, (self.most,) * 4)
        rows = moves[0] + torch.arange(height, device=pixels.device)  # [b h]
        columns = moves[1] + torch.arange(width, device=pixels.device)  # [b w]
        each = torch.arange(len(pixels), device=pixels.device)[:, None, None]
        moved = padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]  # [b h w c]
        return moved.permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Turned about the middle, zoomed and shifted by up to so much each way, all at once; the rim goes on outwards.

    Pixels lie between four old ones, by which they are weighed: what is small and moves little stays what it is.
    """

    turn: float = 0.0  # degrees
    zoom: float = 0.0  # share of the size
    shift: float = 0.0  # share of the side

    def __post_init__(self) -> None:
        if min(self.turn, self.zoom, self.shift) < 0 or self.zoom >= 1:
            raise QkvError(f"Pictures are turned, zoomed and shifted by 0 or more, and zoomed below 1, not by {self}.")

    def __call__(self, pixels: Tensor, draw: np.random.Generator) -> Tensor:
        turn, zoom, across, down = draw.uniform(-1, 1, (4, len(pixels)))  # [b] each
        angle, scale = np.deg2rad(self.turn) * turn, 1 + self.zoom * zoom
        height, width = pixels.shape[-2:]
        cos, sin = np.cos(angle) / scale, np.sin(angle) / scale
        # Where each new place was, from -1 to 1 of either side; a turn is one in pixels.
        rows = [cos, -sin * height / width, 2 * self.shift * across, sin * width / height, cos, 2 * self.shift * down]
        maps = beside(np.stack(rows, 1).reshape(-1, 2, 3), pixels)
        grid = F.affine_grid(maps, list(pixels.shape), align_corners=False)
        return rounded(F.grid_sample(pixels.float(), grid, padding_mode="border", align_corners=False))


def resized_boxes(pixels: Tensor, boxes: Ints, size: tuple[int, int], filter: str) -> Tensor:
    """A box (top, left, height, width) of each picture resized, all at once, by two products with matrices of weights.

    Where a box shrinks, each new pixel is a mean over all the old ones that it covers, as Pillow has it.
    """
    down = weights_along(boxes[:, 0], boxes[:, 2], pixels.shape[-2], size[0], filter, pixels)  # [b i j]
    across = weights_along(boxes[:, 1], boxes[:, 3], pixels.shape[-1], size[1], filter, pixels)  # [b i j]
    half = rounded(pixels.float() @ across[:, None].mT)  # rounded in between, as Pillow does
    return rounded(down[:, None] @ half.float())


def weights_along(starts: Ints, lengths: Ints, old: int, new: int, filter: str, pixels: Tensor) -> Tensor:
    """How much of each old place goes into each new one along one side. [b i j]"""
    first, length = beside(starts, pixels).float()[:, None, None], beside(lengths, pixels).float()[:, None, None]
    scale = length / new  # old pixels for a new one
    centres = first + (torch.arange(new, device=pixels.device)[:, None] + 0.5) * scale  # [b i 1]
    places = torch.arange(old, device=pixels.device) + 0.5  # [j]
    distances = ((places - centres) / scale.clamp(min=1)).abs()  # [b i j]
    if filter == "bilinear":
        weights = (1 - distances).clamp(min=0)
    else:  # Keys' cubic with the slope that Pillow takes
        near = (1.5 * distances - 2.5) * distances**2 + 1
        far = ((-0.5 * distances + 2.5) * distances - 4) * distances + 2
        weights = torch.where(distances < 1, near, torch.where(distances < 2, far, 0.0))
    weights = weights * ((places > first) & (places < first + length))
    return weights / weights.sum(-1, keepdim=True)


def mapped(pixels: Tensor, maps: Floats, fill: int = 128) -> Tensor:
    """Each new pixel is the old one at M·(x, y, 1), or grey where there is none. [b c h w] [b 2 3]"""
    height, width = pixels.shape[-2:]
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    places = np.stack([x.ravel(), y.ravel(), np.ones(x.size)])  # [3 h·w]
    # In double precision and on the CPU, so that what lies near the edge of a pixel is the same everywhere.
    source = np.floor(maps @ places).astype(np.int64)  # [b 2 h·w]
    inside = ((source >= 0) & (source < np.array([[width], [height]]))).all(1)  # [b h·w]
    flat = np.where(inside, source[:, 1] * width + source[:, 0], 0)
    taken = pixels.flatten(2).gather(2, beside(flat, pixels)[:, None].expand(-1, pixels.shape[1], -1))
    return taken.masked_fill(~beside(inside, pixels)[:, None], fill).view_as(pixels)


def sheared(pixels: Tensor, across: Floats, down: Floats) -> Tensor:
    """x + across·y, y + down·x, from the upper left corner. [b] [b]"""
    one, zero = np.ones_like(across), np.zeros_like(across)
    return mapped(pixels, np.stack([one, across, zero, down, one, zero], 1).reshape(-1, 2, 3))


def translated(pixels: Tensor, across: Floats, down: Floats) -> Tensor:
    """What was at (x + across, y + down), in pixels. [b] [b]"""
    one, zero = np.ones_like(across), np.zeros_like(across)
    return mapped(pixels, np.stack([one, zero, across, zero, one, down], 1).reshape(-1, 2, 3))


def rotated(pixels: Tensor, degrees: Floats) -> Tensor:
    """Against the clock, about the middle. [b]"""
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = pixels.shape[-1] / 2, pixels.shape[-2] / 2
    rows = [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y]
    return mapped(pixels, np.stack(rows, 1).reshape(-1, 2, 3))
