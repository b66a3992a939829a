"""Pictures to change."""

import numpy as np
import torch
from torch import Tensor


def pictures(count: int = 4, height: int = 24, width: int = 30, channels: int = 3) -> Tensor:
    """Smooth and rough parts, other channels and other ranges in each. [b c h w] uint8"""
    draw = np.random.default_rng(count + height)
    smooth = np.linspace(0, 180, width)[None, None, None] + np.linspace(-40, 60, height)[None, None, :, None]
    noise = draw.integers(0, 90, (count, channels, height, width))
    scale = draw.uniform(0.4, 1, (count, channels, 1, 1))
    return torch.from_numpy(((smooth + noise) * scale).clip(0, 255).astype(np.uint8))
