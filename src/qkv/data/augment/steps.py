"""What every augmentation is: 8-bit pictures in, 8-bit pictures out, all that is drawn taken from one generator.

What is drawn are a few numbers for each picture, on the CPU; what is done to the pixels runs wherever they are. So a
GPU and a CPU change a batch in the same way, and the same seed gives the same pictures.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


class Augmentation(Protocol):
    """Changes a batch: of pictures [b c h w] in 8 bits, or of sounds as a model reads them. The shape stays."""

    def __call__(self, batch: Tensor, draw: np.random.Generator, /) -> Tensor: ...


@dataclass(frozen=True)
class InTurn:
    """One augmentation after the other."""

    steps: tuple[Augmentation, ...]

    def __call__(self, pixels: Tensor, draw: np.random.Generator) -> Tensor:
        for step in self.steps:
            pixels = step(pixels, draw)
        return pixels


def beside(values: ArrayLike, pixels: Tensor) -> Tensor:
    """Numbers drawn for pictures, where the pictures are; fractions as float32."""
    array = np.asarray(values)
    array = array.astype(np.float32) if array.dtype.kind == "f" else array
    numbers = torch.from_numpy(array)
    # From pinned memory, so that nobody waits until the device has done all it was asked before.
    return numbers.pin_memory().to(pixels.device, non_blocking=True) if pixels.is_cuda else numbers.to(pixels.device)


def in_bytes(values: Tensor) -> Tensor:
    """Numbers back to 8 bits, cut off as Pillow does, not rounded."""
    return values.clamp(0, 255).to(torch.uint8)


def rounded(values: Tensor) -> Tensor:
    """Numbers back to 8 bits, rounded."""
    return (values + 0.5).clamp(0, 255).to(torch.uint8)
