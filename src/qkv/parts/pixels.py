"""Pixels of 8 bits as a model reads them, in one pass over memory where a GPU has them.

What is computed is said in `data/preprocessing.py`, and equal to it to the bit.

Shapes: b pictures, c channels, h height, w width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.data.preprocessing import Normalise, by_channel, exact_parts
from qkv.parts.programs import runs_or_counts

ENOUGH = 1 << 20  # pixels from which on a GPU takes longer than the host that launches a program


def normalised(pixels: Tensor, normalise: Normalise) -> Tensor:
    """`normalise(pixels)`. [b c h w] uint8 → float32"""
    parts = exact_parts(normalise.scale)
    if parts is None or not _suits(pixels, len(normalise.mean)):
        return normalise(pixels)
    from qkv.parts import patch_triton  # Triton comes with torch's builds for GPUs only

    mean = by_channel(normalise.mean, pixels.device) if any(normalise.mean) else None
    std = None if set(normalise.std) == {1.0} else by_channel(normalise.std, pixels.device)
    return patch_triton.normalised(pixels, parts, mean, std)


def _suits(pixels: Tensor, channels: int) -> bool:
    """Whether the program takes them, with a mean for each of their channels, and pays."""
    known = pixels.dtype == torch.uint8 and pixels.ndim == 4 and pixels.shape[1] == channels
    return known and pixels.numel() >= ENOUGH and runs_or_counts(pixels)
