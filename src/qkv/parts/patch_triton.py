"""Launches the programs that make a stream of a picture."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from qkv.parts import patch_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch

ROWS, COLUMNS = 8, 256  # of a program


def cut(images: Tensor, sides: tuple[int, int], strides: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """The pixels of each patch, channel by channel. [b c h w] → [b r·k c·high·wide]"""
    if images.stride(3) != 1:
        images = images.contiguous()
    (b, channels, _, _), (high, wide), (rows, columns) = images.shape, sides, grid
    numbers, count = channels * high * wide, b * rows * columns
    y = torch.empty(b, rows * columns, numbers, dtype=images.dtype, device=images.device)
    launch(
        programs.cut,
        (triton.cdiv(count, ROWS), triton.cdiv(numbers, COLUMNS)),
        (images, y),
        (count, rows, columns, *images.stride()[:3]),
        {
            "HIGH": high, "WIDE": wide, "DOWN": strides[0], "RIGHT": strides[1], "NUMBERS": numbers,
            "R": ROWS, "D": COLUMNS,
        },
        num_warps=4,
    )  # fmt: skip
    return y


def placed(x: Tensor, base: Tensor) -> Tensor:
    """The patches behind a prefix, each with what is added to its slot. [b n d] [s d] → [b s d]"""
    (b, patches, width), slots = x.shape, len(base)
    x, y = x.contiguous(), torch.empty(b, slots, width, dtype=x.dtype, device=x.device)
    launch(
        programs.placed,
        (triton.cdiv(b * slots, ROWS), triton.cdiv(width, COLUMNS)),
        (x, base.contiguous(), y),
        (b * slots, slots, slots - patches),
        {"WIDTH": width, "R": ROWS, "D": COLUMNS},
        num_warps=4,
    )
    return y
