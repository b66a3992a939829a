"""From a picture to a stream: it is cut into patches, and each patch is a token. [dosovitskiy2021 §3.1]

Shapes: b pictures, c channels, h height and w width of a picture, r rows and k columns of the grid of patches,
s tokens (those of the prefix, then r·k patches row by row), d width of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.data.patch_hiding import HiddenPatches
from qkv.errors import QkvError
from qkv.parts.activated_map import linear_map
from qkv.parts.context import Context
from qkv.parts.position import Learned2D
from qkv.parts.precision import narrow_type, narrowed
from qkv.parts.programs import is_counted, runs_or_counts, unwatched
from qkv.parts.spec import CONVOLUTION, Depends
from qkv.parts.stem import ConvolutionStem

TYPES = (torch.bfloat16, torch.float16, torch.float32)  # that programs know
ENOUGH = 1 << 20  # numbers from which on a GPU takes longer to move them than the host to launch a program

Sides = int | tuple[int, int]  # of a patch: one number where height and width are alike


class Patches(nn.Conv2d):
    """A linear map of each patch, which is a convolution that moves by the `stride`. [dosovitskiy2021 eq.1]

    It is computed as one product of all patches, which is faster, and ends as a stream.

    With a stride below the side of a patch neighbours overlap; what is left over at the right and at
    the bottom is not read. With `around`, so many pixels of zeros stand on every side of the picture.
    """

    depends_on = CONVOLUTION.also("around")

    def __init__(
        self, channels: int, width: int, patch: Sides, stride: Sides | None = None, bias: bool = True, around: int = 0
    ) -> None:
        super().__init__(channels, width, patch, patch if stride is None else stride, padding=around, bias=bias)
        self.around = around
        if any(step > side for step, side in zip(self.stride, self.kernel_size, strict=True)):
            raise QkvError(f"Patches of {self.kernel_size} at every {self.stride} would leave out what lies between.")
        nn.init.normal_(self.weight, std=(channels * self.kernel_size[0] * self.kernel_size[1]) ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of patches of a picture of this size."""
        (high, wide), (down, right) = self.kernel_size, self.stride
        if height < high or width < wide:
            raise QkvError(f"A picture of {height} × {width} is smaller than one patch of {high} × {wide}.")
        both = 2 * self.around
        return (height + both - high) // down + 1, (width + both - wide) // right + 1

    def forward(self, images: Tensor) -> Tensor:
        """[b c h w] → [b r·k d]"""
        images = images.to(self.weight.dtype)
        if self.around:
            images = F.pad(narrowed(images), (self.around,) * 4)
        return linear_map(self.cut(images, narrow_type(images)), self.weight.flatten(1), self.bias)

    def cut(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """The pixels of each patch, channel by channel, in another type. [b c h w] → [b r·k c·high·wide]"""
        (high, wide), (down, right) = self.kernel_size, self.stride
        learned = torch.is_grad_enabled() and images.requires_grad
        if not learned and _suits_programs(images) and dtype in TYPES:
            from qkv.parts import patch_triton  # Triton comes with torch's builds for GPUs only

            (h, w), both = images.shape[2:], 2 * self.around
            return patch_triton.cut(images, (high, wide), (down, right), self.grid(h - both, w - both), dtype)
        images = images.to(dtype)  # before pixels are moved, for it makes them fewer bytes
        cut = images.unfold(2, high, down).unfold(3, wide, right)  # [b c r k high wide], a view
        return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


class PatchEmbed(nn.Module):
    """norm(dropout(prefix and patches(stem) + positions)), of which prefix, stem and norm may be absent.

    The prefix are learned tokens that stand for the whole picture, by their names: `class_token`
    [dosovitskiy2021 §3.1], `distillation_token` [touvron2021 §4]. The norm is CLIP's [radford2021 §2.4]. A model that
    `hides` patches has a learned vector, `mask_token`, that stands where one is masked [dosovitskiy2021 §B.1.2].
    """

    depends_on = Depends(
        "patches", "class_token", "position", "dropout", mask_token=None, norm=None, stem=None, distillation_token=None,
        unread=("prefix",),
    )  # fmt: skip

    def __init__(
        self,
        patches: Patches,
        position: Learned2D,
        prefix: Sequence[str] = (),
        dropout: float = 0.0,
        *,
        stem: ConvolutionStem | None = None,
        norm: nn.Module | None = None,
        hides: bool = False,
    ) -> None:
        super().__init__()
        if hides and stem is not None:
            raise QkvError("Behind convolutions a patch has seen its neighbours: a model that hides patches has none.")
        self.prefix, self.stem = tuple(prefix), stem
        if position.prefix != len(self.prefix):
            raise QkvError(f"There are {len(self.prefix)} tokens before the patches, and {position.prefix} positions.")
        for name in self.prefix:
            self.register_parameter(name, nn.Parameter(torch.randn(patches.out_channels) * 0.02))
        self.mask_token = nn.Parameter(torch.randn(patches.out_channels) * 0.02) if hides else None
        self.patches, self.position, self.norm, self.dropout = patches, position, norm, nn.Dropout(dropout)

    def grid(self, images: Tensor) -> tuple[int, int]:
        """The rows and columns of patches of pictures [b c h w]."""
        channels = self.channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise QkvError(
                f"Pictures must come as [rows, {channels} channels, height, width], not as {list(images.shape)}."
            )
        return self.grid_of(images.shape[2], images.shape[3])

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of patches of a picture of this size."""
        return self.patches.grid(*((height, width) if self.stem is None else self.stem.size(height, width)))

    @property
    def channels(self) -> int:
        """Of the pictures that it reads."""
        return self.patches.in_channels if self.stem is None else self.stem.channels

    @property
    def stride(self) -> int:
        """Pixels from one patch to the next, downwards."""
        return self.patches.stride[0] * (1 if self.stem is None else self.stem.stride)

    @property
    def filters(self) -> Tensor:
        """What pixels are multiplied by first. [d c p p]"""
        return self.patches.weight if self.stem is None else self.stem.filters

    def count(self, images: Tensor) -> int:
        """How many tokens each of the pictures becomes."""
        rows, columns = self.grid(images)
        return len(self.prefix) + rows * columns

    def forward(self, images: Tensor, ctx: Context, hidden: HiddenPatches | None = None) -> Tensor:
        """[b c h w] → [b s d]"""
        rows, columns = self.grid(images)
        x = self.patches(images if self.stem is None else self.stem(images))  # [b r·k d]
        if hidden is not None:
            x = self._without(hidden, x)
        x = self.dropout(self._placed(x, self.position(rows, columns)))
        return x if self.norm is None else self.norm(x, ctx)

    def _placed(self, x: Tensor, position: Tensor) -> Tensor:
        """The prefix and the patches [b r·k d], each with its position [s d]. [b s d]"""
        tokens = torch.stack([getattr(self, name) for name in self.prefix]) if self.prefix else None  # [prefix d]
        if _suits_programs(x) and (unwatched(position) or is_counted(position)) and position.dtype in TYPES:
            if tokens is not None:
                position = torch.cat((tokens + position[: len(tokens)], position[len(tokens) :]))
            placed: Tensor = _Placed.apply(x, position)
            return placed
        if tokens is not None:
            x = torch.cat((tokens.expand(len(x), -1, -1), x), 1)
        return x + position

    def _without(self, hidden: HiddenPatches, x: Tensor) -> Tensor:
        """Patches [b r·k d] with masks and others in the place of those that are hidden."""
        if self.mask_token is None:
            raise QkvError("To hide patches a model needs the vector of a mask: build it with the head 'masked'.")
        x = x.flatten(0, 1).index_select(0, hidden.sources.flatten()).view_as(x)  # [b r·k d]
        return torch.where(hidden.masked[..., None], self.mask_token.to(x.dtype), x)


class _Placed(torch.autograd.Function):
    """Patches behind a prefix, each with what is added to its slot. [b n d] [s d] → [b s d]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, base: Tensor) -> Tensor:
        from qkv.parts import patch_triton

        ctx.given = x.shape[1], x.dtype, base.dtype
        return patch_triton.placed(x, base)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor]:
        from qkv.parts import patch_triton

        patches, dtype, of_base = ctx.given
        of_x, sums = patch_triton.taken_back(above, patches, dtype)
        return of_x, sums.to(of_base)


def _suits_programs(x: Tensor) -> bool:
    """Whether programs may move x, and pay."""
    return runs_or_counts(x) and x.dtype in TYPES and x.numel() >= ENOUGH
