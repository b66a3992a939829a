"""The mean colour of a patch in a few bits, which is what a hidden one is to be told by. [dosovitskiy2021 §B.1.2]

Shapes: b pictures, c channels, h height, w width, n patches row by row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BITS = 3  # of a channel
LEVELS = 2**BITS
STEP = 256 // LEVELS


def colours(channels: int) -> int:
    """How many there are: 512 of three channels."""
    return LEVELS**channels


def patch_colours(pixels: Tensor, patch: tuple[int, int]) -> Tensor:
    """The number of each patch's mean colour, the first channel counting most. [b c h w] uint8 → [b n] long"""
    means = F.avg_pool2d(pixels.float(), patch)  # [b c r k]; what is left over at the edges is not read
    levels = (means / STEP).long().flatten(2)  # [b c n]
    places = LEVELS ** torch.arange(levels.shape[1] - 1, -1, -1, device=pixels.device)
    return (levels * places[:, None]).sum(1)


def middle_of(numbers: Tensor, channels: int) -> Tensor:
    """The colour in the middle of those that share a number. [… ] long → [… c] uint8"""
    places = LEVELS ** torch.arange(channels - 1, -1, -1, device=numbers.device)
    levels = numbers[..., None] // places % LEVELS
    return (levels * STEP + STEP // 2).to(torch.uint8)
