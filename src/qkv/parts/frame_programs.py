"""What is done to all frames of a wave at once, as programs for a GPU. `wave.py` specifies it.

Shapes: R frames of a program, D channels (filled up from WIDTH).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled(
    x, scale, shift, y, frames,
    WIDTH: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """y = scale · x + shift, by a scale and a shift of each channel of each row."""
    row, column = tl.program_id(1).to(tl.int64), tl.arange(0, D)
    within = column < WIDTH
    frame = tl.program_id(0) * R + tl.arange(0, R)
    places = (row * frames + frame)[:, None] * WIDTH + column[None, :]
    inside = (frame < frames)[:, None] & within[None, :]
    z = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(scale + row * WIDTH + column, mask=within, other=0.0)
    added = tl.load(shift + row * WIDTH + column, mask=within, other=0.0)
    tl.store(y + places, (z * factor[None, :] + added[None, :]).to(y.dtype.element_ty), mask=inside)
