"""A part of a picture replaced by noise, so that no part alone decides. [zhong2020]

Shapes: b pictures, e of them erased, h height, w width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.data.augment.geometry import TRIES
from qkv.data.augment.steps import beside
from qkv.data.token_rows import Ints
from qkv.errors import QkvError


@dataclass(frozen=True)
class RandomErasing:
    """A rectangle of any place, size and shape, filled with random values. [zhong2020 alg.1]"""

    probability: float = 0.5
    area: tuple[float, float] = (0.02, 0.4)  # least and greatest share of the picture
    shape: float = 0.3  # least height for a width of one; the greatest is its inverse

    def __post_init__(self) -> None:
        if not (0 <= self.probability <= 1 and 0 < self.area[0] <= self.area[1] < 1 and 0 < self.shape <= 1):
            raise QkvError(f"Erasing needs shares from 0 to 1, not {self}.")

    def __call__(self, pixels: Tensor, draw: np.random.Generator) -> Tensor:
        height, width = pixels.shape[-2:]
        drawn = self.boxes(len(pixels), height, width, draw)
        places = np.flatnonzero(drawn[:, 2])
        noise = draw.integers(0, 256, (len(places), *pixels.shape[1:]), dtype=np.uint8)
        some = beside(places, pixels)
        boxes = beside(drawn[places], pixels)[:, :, None]  # [e 4 1]
        y, x = torch.arange(height, device=pixels.device), torch.arange(width, device=pixels.device)
        rows = (y >= boxes[:, 0]) & (y < boxes[:, 0] + boxes[:, 2])  # [e h]
        columns = (x >= boxes[:, 1]) & (x < boxes[:, 1] + boxes[:, 3])  # [e w]
        erased = rows[:, None, :, None] & columns[:, None, None, :]  # [e 1 h w]
        changed = pixels.clone()
        changed[some] = torch.where(erased, beside(noise, pixels), pixels[some])
        return changed

    def boxes(self, count: int, height: int, width: int, draw: np.random.Generator) -> Ints:
        """Top, left, height and width: of several that are drawn the first that fits; empty where none is erased."""
        erased = draw.random(count) < self.probability
        areas = draw.uniform(*self.area, (count, TRIES)) * height * width  # [b tries]
        # DIFFERS [zhong2020 alg.1]: the logarithm of the shape is drawn evenly, so that tall and wide are as frequent.
        shapes = np.exp(draw.uniform(math.log(self.shape), -math.log(self.shape), (count, TRIES)))
        tall, wide = np.rint(np.sqrt(areas * shapes)), np.rint(np.sqrt(areas / shapes))
        tops, lefts = (np.floor(draw.random((count, TRIES)) * side) for side in (height, width))
        fits = (tops + tall <= height) & (lefts + wide <= width)
        first = fits.argmax(1)
        boxes = np.stack([each[np.arange(count), first] for each in (tops, lefts, tall, wide)], 1)  # [b 4]
        boxes[~(erased & fits.any(1))] = 0
        return boxes.astype(np.int64)
