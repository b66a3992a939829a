"""Launches the programs that make a stream of a picture."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from qkv.parts import patch_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch
from qkv.parts.programs import multiprocessors
from qkv.parts.sum_norm_triton import of_programs

ROWS, COLUMNS = 8, 256  # of a program
PIXELS = 4096  # of a program that normalises
PICTURES, STAGES = 4, 3  # of a program that goes back: at a time, and how many times they are on their way
AT_ONCE = 14  # such programs that a multiprocessor has


def normalised(pixels: Tensor, parts: tuple[float, float], mean: Tensor | None, std: Tensor | None) -> Tensor:
    """(p·high + p·low − mean) / std, of 8 bits in float32; `mean` and `std` [c] or None. [b c h w] → [b c h w]"""
    b, channels, high, wide = pixels.shape
    y = torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device)
    launch(
        programs.normalised,
        (b * channels, triton.cdiv(high * wide, PIXELS)),
        (pixels, y if mean is None else mean, y if std is None else std, y),
        (*parts, channels, *pixels.stride()),
        {"WIDE": wide, "NUMBERS": high * wide, "MOVED": mean is not None, "SPREAD": std is not None, "D": PIXELS},
        num_warps=4,
    )
    return y


def cut(
    images: Tensor, sides: tuple[int, int], strides: tuple[int, int], grid: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """The pixels of each patch, channel by channel. [b c h w] → [b r·k c·high·wide]"""
    if images.stride(3) != 1:
        images = images.contiguous()
    (b, channels, _, _), (high, wide), (rows, columns) = images.shape, sides, grid
    numbers, count = channels * high * wide, b * rows * columns
    y = torch.empty(b, rows * columns, numbers, dtype=dtype, device=images.device)
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
    dtype = torch.promote_types(x.dtype, base.dtype)
    x, y = x.contiguous(), torch.empty(b, slots, width, dtype=dtype, device=x.device)
    launch(
        programs.placed,
        (triton.cdiv(b * slots, ROWS), triton.cdiv(width, COLUMNS)),
        (x, base.contiguous(), y),
        (b * slots, slots, slots - patches),
        {"WIDTH": width, "R": ROWS, "D": COLUMNS},
        num_warps=4,
    )
    return y


def taken_back(of_y: Tensor, patches: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gradients of both, of x in its `dtype`, of the base in float32. [b s d] → [b n d] [s d]"""
    of_y, (b, slots, width) = of_y.contiguous(), of_y.shape
    of_x, sums = of_y.new_empty(b, patches, width, dtype=dtype), of_y.new_empty(slots, width, dtype=torch.float32)
    blocks = slots * triton.cdiv(width, COLUMNS)
    many = max(1, min(triton.cdiv(b, PICTURES), AT_ONCE * multiprocessors(of_y.device) // blocks))
    kept = sums.new_empty(many, slots, width)
    launch(
        programs.taken_back,
        (blocks, many),
        (of_y, of_x, kept),
        (b, slots, slots - patches),
        {"WIDTH": width, "R": PICTURES, "D": COLUMNS, "STAGES": STAGES},
        num_warps=4,
    )
    of_programs(kept.flatten(1), sums)
    return of_x, sums
