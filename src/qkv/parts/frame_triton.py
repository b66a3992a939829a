"""Launches what is done to all frames of a wave at once."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from qkv.parts import frame_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch

AT_ONCE = 8192  # numbers of a program
EACH = 32  # of them that a thread holds


def scaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """scale · x + shift, rounded once. [b n c], float32 [b 1 c] and [b 1 c] → [b n c]"""
    rows, frames, width = x.shape
    wide = triton.next_power_of_2(width)
    together = max(1, AT_ONCE // wide)
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(
        programs.scaled,
        (-(-frames // together), rows),
        (x, scale.contiguous(), shift.contiguous(), y),
        (frames,),
        {"WIDTH": width, "R": together, "D": wide},
        num_warps=min(16, max(1, together * wide // (32 * EACH))),
    )
    return y
