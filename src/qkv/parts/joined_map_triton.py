"""Launches the program that lays gradients of several maps side by side."""

from __future__ import annotations

from torch import Tensor

from qkv.parts import joined_map_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch
from qkv.parts.programs import multiprocessors
from qkv.parts.sum_norm_triton import of_programs

COLUMNS = 256, 128, 64  # of a program, which are of one map
NUMBERS = 2048  # at a time
AT_ONCE = 14  # programs that a multiprocessor has
WARPS = 2
STAGES = 3  # tiles of rows on their way


def side_by_side(parts: list[Tensor], whole: Tensor, sums: Tensor) -> None:
    """whole = two or three parts, [m n₁] | [m n₂] | …, and sums [n] = its sum over rows."""
    rows, columns = whole.shape
    if not rows:
        sums.zero_()
        return
    first, second, third = [*parts, parts[0]][:3]
    widths = [*(part.shape[1] for part in parts), 0][:3]
    wide = next(size for size in COLUMNS if not any(width % size for width in widths))
    high, blocks = NUMBERS // wide, columns // wide
    many = min(-(-rows // high), max(1, AT_ONCE * multiprocessors(whole.device) // blocks))
    kept = sums.new_empty(many, columns)
    launch(
        programs.side_by_side,
        (blocks, many),
        (first, second, third, whole, kept),
        (rows, first.stride(0), second.stride(0), third.stride(0)),
        {"FIRST": widths[0], "SECOND": widths[1], "THIRD": widths[2], "R": high, "C": wide, "STAGES": STAGES},
        num_warps=WARPS,
    )
    of_programs(kept, sums)
