"""Programs for a GPU: matrices in 8 bits, each row over a power of two of its own, and the same by columns.

The arithmetic is that of `float8_rows.py`. A row's power is read off the bits of its largest number, so that nothing is
approximate: dividing by it changes exponents alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.activation_programs import activated, slope


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
    strange = tl.max(tl.where(largest < float("inf"), 0, 1), 1) > 0
    top = tl.max(tl.where(largest < float("inf"), largest, 0.0), 1)
    # 448 is 1.75 · 2⁸: a mantissa above 1.75 takes the next power. The least is 2⁻⁵⁸.
    power = ((top.to(tl.int32, bitcast=True) + 0x1FFFFF) & 0x7F800000) - (8 << 23)
    power = tl.maximum(power, (127 - 58) << 23)
    inverse = (0x7F000000 - power).to(tl.float32, bitcast=True)
    scale = tl.where(strange, float("nan"), power.to(tl.float32, bitcast=True))
    tl.store(scales + row, scale, mask=row < rows)
    for start in range(0, width, N):
        column = (start + tl.arange(0, N))[None, :]
        inside = there & (column < width)
        part = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(narrow + column, (part * inverse[:, None]).to(narrow.dtype.element_ty), mask=inside)


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
    inside = (four < rows // 4)[:, None] & (column < width)[None, :]
    narrow += four[:, None] * 4 * width + column[None, :]
    total = tl.zeros([R, N], tl.float32)
    together = tl.zeros([R, N], tl.int32)
    for i in tl.static_range(4):
        x = tl.load(narrow + i * width, mask=inside, other=0)
        if FOLDED:
            wide = x.to(tl.float8e4nv, bitcast=True).to(tl.float32)
            if SUMMED:
                scale = tl.load(scales + four * 4 + i, mask=four < rows // 4, other=0.0)
                total += wide * scale[:, None]
            factor = tl.load(factors + four * 4 + i, mask=four < rows // 4, other=0.0) / tl.load(top)
            x = (wide * factor[:, None]).to(tl.float8e4nv).to(tl.int8, bitcast=True)
        together |= x.to(tl.uint8, bitcast=True).to(tl.int32) << (8 * i)
    place = turned + column.to(tl.int64)[:, None] * (rows // 4) + four[None, :]
    tl.store(place, tl.trans(together), mask=(column < width)[:, None] & (four < rows // 4)[None, :])
    if SUMMED:
        tl.store(sums + tile.to(tl.int64) * width + column, tl.sum(total, 0), mask=column < width)


@triton.jit
def round_activated(
    z, inverses, narrow, turned, rows, width, ACTIVATION: tl.constexpr, R: tl.constexpr, N: tl.constexpr
):
    """activation(z), each row times its inverse, in 8 bits by rows and by columns. Tiles are those of `turn`."""
    four = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    column = tl.program_id(1) * N + tl.arange(0, N)
    there = four < rows // 4
    inside = there[:, None] & (column < width)[None, :]
    place = four[:, None] * 4 * width + column[None, :]
    together = tl.zeros([R, N], tl.int32)
    for i in tl.static_range(4):
        wide = activated(tl.load(z + place + i * width, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
        inverse = tl.load(inverses + four * 4 + i, mask=there, other=0.0)
        x = (wide * inverse[:, None]).to(tl.float8e4nv).to(tl.int8, bitcast=True)
        tl.store(narrow + place + i * width, x, mask=inside)
        together |= x.to(tl.uint8, bitcast=True).to(tl.int32) << (8 * i)
    across = turned + column.to(tl.int64)[:, None] * (rows // 4) + four[None, :]
    tl.store(across, tl.trans(together), mask=(column < width)[:, None] & there[None, :])


@triton.jit
def round_sloped(
    above, z, inverses, folds, narrow, turned, sums, rows, width,
    ACTIVATION: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """above · activation'(z) in 8 bits: by rows, each times its inverse, and by columns, each row times its fold.

    And sums over the rows of each tile [rows/4R width], of what is not rounded.
    """
    tile = tl.program_id(0)
    four = tile.to(tl.int64) * R + tl.arange(0, R)
    column = tl.program_id(1) * N + tl.arange(0, N)
    there = four < rows // 4
    inside = there[:, None] & (column < width)[None, :]
    place = four[:, None] * 4 * width + column[None, :]
    total = tl.zeros([R, N], tl.float32)
    together = tl.zeros([R, N], tl.int32)
    for i in tl.static_range(4):
        wide = slope(tl.load(z + place + i * width, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
        wide *= tl.load(above + place + i * width, mask=inside, other=0.0).to(tl.float32)
        total += wide
        inverse = tl.load(inverses + four * 4 + i, mask=there, other=0.0)
        fold = tl.load(folds + four * 4 + i, mask=there, other=0.0)
        by_row = (wide * inverse[:, None]).to(tl.float8e4nv).to(tl.int8, bitcast=True)
        tl.store(narrow + place + i * width, by_row, mask=inside)
        x = (wide * fold[:, None]).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        together |= x.to(tl.int32) << (8 * i)
    across = turned + column.to(tl.int64)[:, None] * (rows // 4) + four[None, :]
    tl.store(across, tl.trans(together), mask=(column < width)[:, None] & there[None, :])
    tl.store(sums + tile.to(tl.int64) * width + column, tl.sum(total, 0), mask=column < width)
