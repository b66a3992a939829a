"""Programs for a GPU: matrices in 8 bits, each row over a power of two of its own, and the same by columns.

The arithmetic is that of `rows.py`. A row's power is read off the bits of its largest number, so that nothing is
approximate: dividing by it changes exponents alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.activation_programs import activated, slope
from qkv.parts.power_programs import powers


@triton.jit
def round_rows(x, narrow, scales, rows, width, stride, R: tl.constexpr, N: tl.constexpr):
    """A program for R rows, read once for their largest numbers and once more, mostly from the cache, to be rounded."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    there = (row < rows)[:, None]
    x += row[:, None] * stride
    narrow += row[:, None] * width
    largest = tl.zeros([R, N], tl.float32)
    for start in range(0, width, N):
        column = (start + tl.arange(0, N))[None, :]
        part = tl.load(x + column, mask=there & (column < width), other=0.0).to(tl.float32)
        # What is no number compares with nothing, and must not be passed over.
        largest = tl.where(tl.abs(part) <= largest, largest, tl.where(largest == largest, tl.abs(part), largest))
    inverse, scale = powers(
        tl.max(tl.where(largest < float("inf"), largest, 0.0), 1), tl.max(tl.where(largest < float("inf"), 0, 1), 1) > 0
    )
    tl.store(scales + row, scale, mask=row < rows)
    for start in range(0, width, N):
        column = (start + tl.arange(0, N))[None, :]
        inside = there & (column < width)
        part = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(narrow + column, (part * inverse[:, None]).to(narrow.dtype.element_ty), mask=inside)


@triton.jit
def held_part(x, row, rows, stride, W: tl.constexpr, N: tl.constexpr):
    """Rows [R N] of one matrix of width W, and their sizes by bits, which order what is no number above all others."""
    column = tl.arange(0, N)[None, :]
    there = (row < rows)[:, None] & (column < W)
    part = tl.load(x + row[:, None] * stride + column, mask=there, other=0.0)
    return part, part.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def store_part(narrow, part, inverse, row, rows, first, width, W: tl.constexpr, N: tl.constexpr):
    column = tl.arange(0, N)[None, :]
    there = (row < rows)[:, None] & (column < W)
    made = (part.to(tl.float32) * inverse[:, None]).to(tl.float8e4nv).to(tl.int8, bitcast=True)
    tl.store(narrow + row[:, None] * width + first + column, made, mask=there)


@triton.jit
def round_side_by_side(
    a, b, c, others, narrow, scales, both, top, rows, stride_a, stride_b, stride_c,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """R rows of three matrices, of widths A, B and C (0: none), that are held until they are written beside each other.

    both: the scales times those of another matrix; top: the largest of these, by its bits.
    """
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    part_a, size = held_part(a, row, rows, stride_a, A, N)
    part_b, size_b = held_part(b, row, rows, stride_b, B, N)
    size = tl.maximum(size, size_b)
    if C:
        part_c, size_c = held_part(c, row, rows, stride_c, C, N)
        size = tl.maximum(size, size_c)
    largest = tl.max(size, 1)
    strange = largest >= 0x7F800000
    inverse, scale = powers(tl.where(strange, 0, largest).to(tl.float32, bitcast=True), strange)
    store_part(narrow, part_a, inverse, row, rows, 0, A + B + C, A, N)
    store_part(narrow, part_b, inverse, row, rows, A, A + B + C, B, N)
    if C:
        store_part(narrow, part_c, inverse, row, rows, A + B, A + B + C, C, N)
    tl.store(scales + row, scale, mask=row < rows)
    scale *= tl.load(others + row, mask=row < rows, other=0.0)
    tl.store(both + row, scale, mask=row < rows)
    bits = tl.max(tl.where(row < rows, scale.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0), 0)
    if bits > tl.load(top):  # mostly it has been met before, and is not waited for
        tl.atomic_max(top, bits)


@triton.jit
def in_pairs(upper, lower):
    """Two rows in 8 bits, with both numbers of a column in the lower half of a word.

    The hardware rounds two numbers at a time into neighbouring bytes: those that are neighbours here.
    """
    both = tl.join(upper, lower).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    first, second = tl.split(both)
    return first.to(tl.int32) | (second.to(tl.int32) << 8)


@triton.jit
def turn(
    narrow, turned, factors, top, scales, sums,
    rows, width,
    FOLDED: tl.constexpr, SUMMED: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A program for a tile of 4 R rows and N columns, which it writes with the numbers of a column side by side.

    Four rows are laid into one number of 32 bits, so that a quarter as many change places between threads.
    FOLDED: each row times its factor over the largest, which is a power of two. SUMMED: sums [rows/4R width] over the
    rows of the tile, each times its scale.
    """
    tile = tl.program_id(0)
    four = tile.to(tl.int64) * R + tl.arange(0, R)
    column = tl.program_id(1) * N + tl.arange(0, N)
    there = four < rows // 4
    inside = there[:, None] & (column < width)[None, :]
    narrow += four[:, None] * 4 * width + column[None, :]
    total = tl.zeros([R, N], tl.float32)
    together = tl.zeros([R, N], tl.int32)
    before = tl.zeros([R, N], tl.float16)
    if FOLDED:
        over = (0x7F000000 - tl.load(top).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    for i in tl.static_range(4):
        x = tl.load(narrow + i * width, mask=inside, other=0)
        if FOLDED:
            # Two at a time in 16 bits, where all of it is exact that 8 bits can hold afterwards.
            wide = x.to(tl.float8e4nv, bitcast=True).to(tl.float16)
            if SUMMED:
                scale = tl.load(scales + four * 4 + i, mask=there, other=0.0)
                total += wide.to(tl.float32) * scale[:, None]
            factor = tl.load(factors + four * 4 + i, mask=there, other=0.0) * over
            wide *= factor.to(tl.float16)[:, None]
            if i % 2:
                together |= in_pairs(before, wide) << (8 * i - 8)
            before = wide
        else:
            together |= x.to(tl.uint8, bitcast=True).to(tl.int32) << (8 * i)
    place = turned + column.to(tl.int64)[:, None] * (rows // 4) + four[None, :]
    tl.store(place, tl.trans(together), mask=(column < width)[:, None] & there[None, :])
    if SUMMED:
        tl.store(sums + tile.to(tl.int64) * width + column, tl.sum(total, 0), mask=column < width)


@triton.jit
def round_activated(
    z, inverses, narrow, turned, rows, width, step,
    ACTIVATION: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """activation(z), each row times its inverse, in 8 bits by rows and by columns. Tiles are those of `turn`.

    With step 0 there is one inverse for all rows.
    """
    down, along = tl.program_id(0), tl.program_id(1)
    round_tile(z, inverses, narrow, turned, down, along, rows, width, step, ACTIVATION, R, N)


@triton.jit
def round_tile(
    z, inverses, narrow, turned, down, along, rows, width, step,
    ACTIVATION: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Of `round_activated` the tile that is so many tiles down and along.

    What is rounded for a column is not what is rounded for a row: ptxas 12.8 would read it before it is there (a word
    of two such halves is made late).
    """
    four = down.to(tl.int64) * R + tl.arange(0, R)
    column = along * N + tl.arange(0, N)
    there = four < rows // 4
    inside = there[:, None] & (column < width)[None, :]
    place = four[:, None] * 4 * width + column[None, :]
    together = tl.zeros([R, N], tl.int32)
    before = tl.zeros([R, N], tl.float32)
    for i in tl.static_range(4):
        wide = activated(tl.load(z + place + i * width, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
        wide *= tl.load(inverses + (four * 4 + i) * step, mask=there, other=0.0)[:, None]
        tl.store(narrow + place + i * width, wide.to(tl.float8e4nv).to(tl.int8, bitcast=True), mask=inside)
        if i % 2:
            together |= in_pairs(before, wide) << (8 * i - 8)
        before = wide
    across = turned + column.to(tl.int64)[:, None] * (rows // 4) + four[None, :]
    tl.store(across, tl.trans(together), mask=(column < width)[:, None] & there[None, :])


@triton.jit
def round_sloped(
    above, z, inverses, factors, top, scales, narrow, turned, sums, rows, width,
    ACTIVATION: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """above · activation'(z) in 8 bits: by rows, each times its inverse, and by columns, each row times its
    factor over `top`, a power of two.

    And sums over the rows of each tile [rows/4R width], each times its scale, of what is not rounded.
    """
    tile = tl.program_id(0)
    four = tile.to(tl.int64) * R + tl.arange(0, R)
    column = tl.program_id(1) * N + tl.arange(0, N)
    there = four < rows // 4
    inside = there[:, None] & (column < width)[None, :]
    place = four[:, None] * 4 * width + column[None, :]
    total = tl.zeros([R, N], tl.float32)
    together = tl.zeros([R, N], tl.int32)
    over = (0x7F000000 - tl.load(top).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    for i in tl.static_range(4):
        wide = slope(tl.load(z + place + i * width, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
        wide *= tl.load(above + place + i * width, mask=inside, other=0.0).to(tl.float32)
        total += wide * tl.load(scales + four * 4 + i, mask=there, other=0.0)[:, None]
        inverse = tl.load(inverses + four * 4 + i, mask=there, other=0.0)
        fold = tl.load(factors + four * 4 + i, mask=there, other=0.0) * over
        by_row = (wide * inverse[:, None]).to(tl.float8e4nv).to(tl.int8, bitcast=True)
        tl.store(narrow + place + i * width, by_row, mask=inside)
        x = (wide * fold[:, None]).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        together |= x.to(tl.int32) << (8 * i)
    across = turned + column.to(tl.int64)[:, None] * (rows // 4) + four[None, :]
    tl.store(across, tl.trans(together), mask=(column < width)[:, None] & there[None, :])
    tl.store(sums + tile.to(tl.int64) * width + column, tl.sum(total, 0), mask=column < width)


@triton.jit
def add_tiles(sums, total, tiles, width, T: tl.constexpr, N: tl.constexpr):
    """total [width] of sums [tiles width], T tiles at a time, always in one order."""
    tile, column = tl.arange(0, T), tl.program_id(0) * N + tl.arange(0, N)
    inside = (column < width)[None, :]
    held = tl.zeros([T, N], tl.float32)
    for start in range(0, tiles, T):
        there = inside & (start + tile < tiles)[:, None]
        held += tl.load(sums + (start + tile)[:, None] * width + column[None, :], mask=there, other=0.0)
    tl.store(total + column, tl.sum(held, 0), mask=column < width)
