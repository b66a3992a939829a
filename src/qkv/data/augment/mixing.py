"""Two pictures made one, with a target that is part of either's: mixup [zhang2018] and CutMix [yun2019].

Shapes: b pictures, c channels, h height, w width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.data.augment.steps import beside
from qkv.errors import QkvError


@dataclass(frozen=True)
class Mixed:
    """Pictures, the place of each one's partner in the batch, and how much of each is still itself."""

    images: Tensor  # [b c h w] float
    partners: Tensor  # [b] long
    kept: Tensor  # [b] float32, from 0 to 1


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Each batch is mixed by one of the two ways, with a share that is drawn for it.

    `mixup` and `cutmix` are the α of the Beta distribution that the share is drawn from; None: this way is not taken.
    """

    mixup: float | None = 0.8
    cutmix: float | None = 1.0
    cutmix_share: float = 0.5  # of the batches, where both ways are taken
    probability: float = 1.0  # that a batch is mixed at all

    def __post_init__(self) -> None:
        if any(alpha is not None and alpha <= 0 for alpha in (self.mixup, self.cutmix)):
            raise QkvError(f"The α of a mixing must be above 0, or None for no mixing of this kind, not {self}.")
        if not (0 <= self.cutmix_share <= 1 and 0 <= self.probability <= 1):
            raise QkvError(f"Shares of a mixing go from 0 to 1, not {self}.")

    def __call__(self, images: Tensor, draw: np.random.Generator, count: int | None = None) -> Mixed:
        """Mix the first `count` pictures among each other, all by default. [b c h w] float, normalised or not"""
        count = len(images) if count is None else count
        partners = np.arange(len(images))
        partners[:count] = draw.permutation(count)
        wanted = draw.random() < self.probability
        cuts = self.cutmix is not None and (self.mixup is None or draw.random() < self.cutmix_share)
        alpha = self.cutmix if cuts else self.mixup
        if not wanted or alpha is None:
            everything = torch.ones(len(images), device=images.device)
            return Mixed(images, torch.arange(len(images), device=images.device), everything)
        share = float(draw.beta(alpha, alpha))
        others = images[beside(partners, images)]
        if cuts:
            top, left, bottom, right = cut(images.shape[-2], images.shape[-1], share, draw)
            images = images.clone()
            images[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
            # What the rim cut off of the rectangle was not replaced. [yun2019 §3.1]
            share = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
        else:
            images = share * images + (1 - share) * others  # [zhang2018 eq.1]
        kept = torch.full((len(images),), share, device=images.device)
        return Mixed(images, beside(partners, images), kept)


def cut(height: int, width: int, share: float, draw: np.random.Generator) -> tuple[int, int, int, int]:
    """A rectangle of 1 − share of the picture about a point drawn evenly: top, left, bottom, right. [yun2019 eq.2]"""
    side = np.sqrt(1 - share)
    tall, wide = int(height * side), int(width * side)
    y, x = int(draw.integers(height)), int(draw.integers(width))
    top, left = max(0, y - tall // 2), max(0, x - wide // 2)
    return top, left, min(height, y + (tall + 1) // 2), min(width, x + (wide + 1) // 2)
