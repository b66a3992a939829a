"""Convolutions before the patches: a picture becomes a map of fewer places, and each place is a token. [xiao2021]

Shapes: b pictures, c channels, h height and w width of a picture, n convolutions.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.convolution import Convolution
from qkv.parts.spec import Depends

KERNEL, STRIDE = 3, 2


class ConvolutionStem(nn.Module):
    """`count` convolutions of 3 × 3 at every second place, each twice as wide as the one before, the last `width`.

    What comes of them is read in patches of one place, which is the 1 × 1 convolution that ends the paper's stem.

    DIFFERS [xiao2021]: behind a convolution stand a norm of the whole map and GELU, where the paper has a batch norm
    and ReLU: so what a picture becomes never depends on the others of its batch.
    """

    depends_on = Depends("convolutions", unread=("channels",))

    def __init__(self, channels: int, width: int, count: int) -> None:
        super().__init__()
        if count < 1 or width % 2 ** (count - 1):
            raise QkvError(
                f"A stem of {count} convolutions, each half as wide as the next, needs a width that divides by "
                f"{2 ** (count - 1)}, and {width} does not."
            )
        self.channels = channels  # of the pictures that it reads
        widths = [channels, *(width >> (count - 1 - number) for number in range(count))]
        self.convolutions = nn.ModuleList(
            Convolution(inputs, outputs, KERNEL, partial(nn.GroupNorm, 1), stride=STRIDE)
            for inputs, outputs in pairwise(widths)
        )

    @property
    def filters(self) -> Tensor:
        """What pixels are multiplied by. [c' c 3 3]"""
        first: Convolution = self.convolutions[0]  # type: ignore[assignment]  # what was put there
        return first.convolution.weight

    @property
    def stride(self) -> int:
        """Pixels from one place of the map to the next."""
        return int(STRIDE ** len(self.convolutions))

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of the map of such a picture."""
        return -(-height // self.stride), -(-width // self.stride)

    def forward(self, images: Tensor) -> Tensor:
        """[b c h w] → [b c' ⌈h / 2ⁿ⌉ ⌈w / 2ⁿ⌉]"""
        x = images.to(self.filters.dtype)
        for convolution in self.convolutions:
            x = F.gelu(convolution(x))
        return x
