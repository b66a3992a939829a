"""From a picture to a stream, as programs for a GPU. `patches.py` specifies them.

Both move each number once, in pieces as long as it lies in memory; torch's operations move them one by one.

Shapes: R patches or slots of a program, D numbers of each (filled up).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cut(
    images, y, count, rows, columns, picture, channel, line,
    HIGH: tl.constexpr, WIDE: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr, NUMBERS: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Some numbers of some patches, each HIGH × WIDE pixels of every channel, one patch DOWN and RIGHT from the next.

    `picture`, `channel` and `line` are how far these lie from one another.
    """
    patch, number = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * D + tl.arange(0, D)
    within = patch % (rows * columns)
    corner = (patch // (rows * columns)).to(tl.int64) * picture
    corner += (within // columns) * DOWN * line + (within % columns) * RIGHT
    pixel = number // (HIGH * WIDE) * channel + number // WIDE % HIGH * line + number % WIDE
    inside = (patch < count)[:, None] & (number < NUMBERS)[None, :]
    found = tl.load(images + corner[:, None] + pixel[None, :], mask=inside)
    tl.store(y + patch.to(tl.int64)[:, None] * NUMBERS + number[None, :], found, mask=inside)


@triton.jit
def placed(
    x, base, y, count, slots, prefix,
    WIDTH: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """y[b, s] = x[b, s - prefix] + base[s]; of the prefix the base alone."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * D + tl.arange(0, D)
    slot, picture = row % slots, row // slots
    there, within = row < count, column < WIDTH
    patch = (picture * (slots - prefix) + slot - prefix).to(tl.int64)
    own = (there & (slot >= prefix))[:, None] & within[None, :]
    inside = there[:, None] & within[None, :]
    z = tl.load(x + patch[:, None] * WIDTH + column[None, :], mask=own, other=0.0).to(tl.float32)
    z += tl.load(base + slot[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row.to(tl.int64)[:, None] * WIDTH + column[None, :], z.to(y.dtype.element_ty), mask=inside)
