"""Convolutions before the patches: a picture becomes a map of fewer places, and each place is a token. [xiao2021 §4]

Shapes: b pictures, c channels, h height and w width of a picture, n convolutions.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError

KERNEL, STRIDE = 3, 2


class ConvolutionStem(nn.Module):
    """`count` convolutions of 3 × 3 at every second place, each twice as wide as the one before, the last `width`.

    What comes of them is read in patches of one place, which is the 1 × 1 convolution that ends the paper's stem.

    DIFFERS [xiao2021 §4]: GELU alone where the paper has a batch norm and ReLU, so that what a picture becomes never
    depends on the others of its batch.
    """

    def __init__(self, channels: int, width: int, count: int) -> None:
        super().__init__()
        if count < 1 or width % 2 ** (count - 1):
            raise QkvError(f"A stem of {count} convolutions halves its width {count - 1} times, and {width} does not.")
        widths = [channels, *(width >> (count - 1 - number) for number in range(count))]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, KERNEL, STRIDE, padding=KERNEL // 2) for inputs, outputs in pairwise(widths)
        )
        for convolution in self.convolutions:
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)

    @property
    def channels(self) -> int:
        """Of the pictures that it reads."""
        return int(self.convolutions[0].in_channels)

    @property
    def stride(self) -> int:
        """Pixels from one place of the map to the next."""
        return STRIDE ** len(self.convolutions)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of the map of such a picture."""
        return -(-height // self.stride), -(-width // self.stride)

    def forward(self, images: Tensor) -> Tensor:
        """[b c h w] → [b c' ⌈h / 2ⁿ⌉ ⌈w / 2ⁿ⌉]"""
        x = images.to(self.convolutions[0].weight.dtype)
        for convolution in self.convolutions:
            x = F.gelu(convolution(x))
        return x
