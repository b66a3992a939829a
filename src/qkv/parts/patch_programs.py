"""From a picture to a stream, as programs for a GPU. `patches.py` and `data/preprocessing.py` specify them.

All move each number once, in pieces as long as it lies in memory; torch's operations move them one by one, and once for
each thing that is done to them.

Shapes: R patches, slots or pictures of a program, D numbers of each (filled up).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normalised(
    pixels, mean, std, y, high, low, channels, picture, channel, line, column,
    WIDE: tl.constexpr, NUMBERS: tl.constexpr, MOVED: tl.constexpr, SPREAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """y = (p·high + p·low − mean) / std of some of the NUMBERS of one channel of one picture.

    p·high is exact, so that it makes no difference whether a product is rounded before it is added.
    `picture`, `channel`, `line` and `column` are how far these lie from one another.
    """
    plane, number = tl.program_id(0), tl.program_id(1) * D + tl.arange(0, D)
    own = plane % channels
    corner = (plane // channels).to(tl.int64) * picture + own.to(tl.int64) * channel
    inside = number < NUMBERS
    p = tl.load(pixels + corner + number // WIDE * line + number % WIDE * column, mask=inside, other=0).to(tl.float32)
    z = p * high + p * low
    if MOVED:
        z -= tl.load(mean + own)
    if SPREAD:
        z = tl.div_rn(z, tl.load(std + own) + tl.zeros([D], tl.float32))
    tl.store(y + plane.to(tl.int64) * NUMBERS + number, z, mask=inside)


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
    place = patch.to(tl.int64)[:, None] * NUMBERS + number[None, :]
    tl.store(y + place, found.to(y.dtype.element_ty), mask=inside)


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


@triton.jit
def taken_back(
    of_y, of_x, sums, pictures, slots, prefix,
    WIDTH: tl.constexpr, R: tl.constexpr, D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The way back of `placed`: gradients of x, and sums [programs slots WIDTH] over the pictures of a program.

    A program has D columns of one slot, of every so many pictures.
    """
    slot, column = tl.program_id(0) % slots, tl.program_id(0) // slots * D + tl.arange(0, D)[None, :]
    written = tl.where(slot >= prefix, WIDTH, 0)  # columns, which for the prefix is none
    total = tl.zeros([R, D], tl.float32)
    for several in tl.range(tl.program_id(1), tl.cdiv(pictures, R), tl.num_programs(1), num_stages=STAGES):
        picture = (several * R + tl.arange(0, R)).to(tl.int64)[:, None]
        inside = (picture < pictures) & (column < WIDTH)
        found = tl.load(of_y + (picture * slots + slot) * WIDTH + column, mask=inside, other=0.0)
        patch = picture * (slots - prefix) + slot - prefix
        own = (picture < pictures) & (column < written)
        tl.store(of_x + patch * WIDTH + column, found.to(of_x.dtype.element_ty), mask=own)
        total += found.to(tl.float32)
    at = (tl.program_id(1).to(tl.int64) * slots + slot) * WIDTH + column
    tl.store(sums + at, tl.sum(total, 0)[None, :], mask=column < WIDTH)
