"""Documents that stand in line are put into rows, where they end together."""

import triton
import triton.language as tl


@triton.jit
def in_rows(
    x_ptr, y_ptr, bounds_ptr, to_token, to_head, slots, room,
    H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """y[row, head, slot] for STEP slots, of `slots` at whose end the row's document ends; before it are zeros.

    x [H s D], of which heads and tokens lie so far apart, y [r H room D]; bounds [r + 1]: where each document begins.
    """
    row, head = tl.program_id(0) // H, tl.program_id(0) % H
    slot = tl.program_id(1) * STEP + tl.arange(0, STEP)
    token = tl.load(bounds_ptr + row + 1) - slots + slot
    real = token >= tl.load(bounds_ptr + row)
    d = tl.arange(0, WIDE)
    inside = (slot < slots)[:, None] & (d < D)[None, :]
    there = x_ptr + head.to(tl.int64) * to_head + token[:, None].to(tl.int64) * to_token + d[None, :]
    x = tl.load(there, mask=inside & real[:, None], other=0.0)
    tl.store(y_ptr + (tl.program_id(0).to(tl.int64) * room + slot[:, None]) * D + d[None, :], x, mask=inside)
