"""Launches the program that puts documents into rows."""

from __future__ import annotations

import triton
from torch import Tensor

from qkv.parts.attention import in_rows_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch

AT_ONCE = 4096  # numbers of a program


def put(x: Tensor, y: Tensor, bounds: Tensor, slots: int) -> None:
    """Documents of x [1 h s d] into rows of y [r h room d], which end with the first `slots`; bounds [r + 1]."""
    (rows, heads, room, width), x = y.shape, x if x.stride(3) == 1 else x.contiguous()
    wide = triton.next_power_of_2(width)
    step = max(1, AT_ONCE // wide)
    launch(
        programs.in_rows,
        (rows * heads, triton.cdiv(slots, step)),
        (x, y, bounds),
        (x.stride(2), x.stride(1), slots, room),
        {"H": heads, "D": width, "WIDE": wide, "STEP": step},
        num_warps=4,
    )
