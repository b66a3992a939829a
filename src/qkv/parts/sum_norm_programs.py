"""Residual sum and norm in one pass there and one pass back, as programs for a GPU.

`sum_norm.py` specifies them. A program holds the rows that it has read: a number of the stream is read once and written
once. On the way back it keeps what it summed over its rows, for gain, shift and bias; `of_programs` adds that up, in
an order that is always the same.

Shapes: R rows at a time, D columns (filled up from WIDTH).
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.power_programs import powers


@triton.jit
def sum_norm(
    x, added, bias, gain, shift, factor, total, y, statistics, rows, epsilon,
    ADDED: tl.constexpr, BIASED: tl.constexpr, SHIFTED: tl.constexpr, TIMES: tl.constexpr, RMS: tl.constexpr,
    WIDTH: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """total = x + added + bias, y = norm(total), where TIMES the one factor; statistics [2 rows] are means, and
    reciprocals of deviations."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, D)
    within = column < WIDTH
    there = row < rows
    inside = there[:, None] & within[None, :]
    at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    z = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        z += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        z += tl.load(bias + column, mask=within, other=0.0).to(tl.float32)[None, :]
    tl.store(total + at, z.to(total.dtype.element_ty), mask=inside)
    if not RMS:
        mean = tl.sum(z, 1) / WIDTH
        z = tl.where(within[None, :], z - mean[:, None], 0.0)
        tl.store(statistics + row, mean, mask=there)
    rate = tl.rsqrt(tl.sum(z * z, 1) / WIDTH + epsilon)
    tl.store(statistics + rows + row, rate, mask=there)
    made = z * rate[:, None] * tl.load(gain + column, mask=within, other=0.0).to(tl.float32)[None, :]
    if SHIFTED:
        made += tl.load(shift + column, mask=within, other=0.0).to(tl.float32)[None, :]
    if TIMES:
        made *= tl.load(factor)
    tl.store(y + at, made.to(y.dtype.element_ty), mask=inside)


@triton.jit
def both_sums(a, b, other_a, other_b):
    return a + other_a, b + other_b


@triton.jit
def larger_and_sum(a, b, other_a, other_b):
    return tl.maximum(a, other_a), b + other_b


@triton.jit
def sum_norm_back(
    of_total, of_y, factors, total, statistics, gain, reach, of_x, of_added, scales, sizes, sums, rows,
    HANDED: tl.constexpr, TIMES: tl.constexpr, ADDED: tl.constexpr, SCALED: tl.constexpr, RMS: tl.constexpr,
    WIDTH: tl.constexpr, R: tl.constexpr, D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """of_x = of_total + slope of the norm, and the same narrow; sums [programs 3 WIDTH] over rows of of_y · normed
    (the gain's), of_y (the shift's) and of_x (a bias's).

    TIMES: each row of of_y is taken times its factor. SCALED: the narrow one has 8 bits, each row over a power of two.
    Of each row scales [3 rows] are this power, then that of a bound of its products with columns of length `reach`, and
    the first over the second; sizes [2 programs] are the largest of the first and of the second, by bits.
    """
    column = tl.arange(0, D)
    within = column < WIDTH
    scale = tl.load(gain + column, mask=within, other=0.0).to(tl.float32)[None, :]
    of_gain = tl.zeros([R, D], tl.float32)
    of_shift = tl.zeros([R, D], tl.float32)
    of_bias = tl.zeros([R, D], tl.float32)
    top = tl.zeros([R], tl.int32)
    top_of_bounds = tl.zeros([R], tl.int32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, R), tl.num_programs(0), num_stages=STAGES):
        row = tile * R + tl.arange(0, R)
        there = row < rows
        inside = there[:, None] & within[None, :]
        at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        normed = tl.load(total + at, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(of_y + at, mask=inside, other=0.0).to(tl.float32)
        if HANDED:  # read early, so that all is on its way at once
            passed = tl.load(of_total + at, mask=inside, other=0.0).to(tl.float32)
        rate = tl.load(statistics + rows + row, mask=there, other=0.0)[:, None]
        if TIMES:
            slope *= tl.load(factors + row, mask=there, other=0.0)[:, None]
        if not RMS:
            mean = tl.load(statistics + row, mask=there, other=0.0)[:, None]
            normed = tl.where(inside, normed - mean, 0.0)
        normed *= rate
        of_gain += slope * normed
        of_shift += slope
        slope *= scale
        if RMS:
            shared = normed * (tl.sum(slope * normed, 1) / WIDTH)[:, None]
        else:  # together: threads wait for each other but once
            along, all_of_it = tl.reduce((slope * normed, slope), 1, both_sums)
            shared = normed * (along / WIDTH)[:, None] + (all_of_it / WIDTH)[:, None]
        made = (slope - shared) * rate
        if HANDED:
            made += passed
        tl.store(of_x + at, made.to(of_x.dtype.element_ty), mask=inside)
        if ADDED:
            of_bias += made
            if SCALED:
                made = tl.where(within[None, :], made, 0.0)
                sizes_of_row = made.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # by bits: no number is above all
                largest, squares = tl.reduce((sizes_of_row, made * made), 1, larger_and_sum)
                strange = largest >= 0x7F800000
                inverse, power = powers(tl.where(strange, 0, largest).to(tl.float32, bitcast=True), strange)
                one_over, bound = powers(tl.sqrt(squares) * tl.load(reach), strange)
                tl.store(scales + row, power, mask=there)
                tl.store(scales + rows + row, bound, mask=there)
                tl.store(scales + 2 * rows + row, power * one_over, mask=there)
                top = tl.maximum(top, tl.where(there, power.to(tl.int32, bitcast=True), 0))
                top_of_bounds = tl.maximum(top_of_bounds, tl.where(there, bound.to(tl.int32, bitcast=True), 0))
                made *= inverse[:, None]
            tl.store(of_added + at, made.to(of_added.dtype.element_ty), mask=inside)
    kept = sums + tl.program_id(0).to(tl.int64) * 3 * WIDTH + column
    tl.store(kept, tl.sum(of_gain, 0), mask=within)
    tl.store(kept + WIDTH, tl.sum(of_shift, 0), mask=within)
    tl.store(kept + 2 * WIDTH, tl.sum(of_bias, 0), mask=within)
    if SCALED:
        tl.store(sizes + tl.program_id(0), tl.max(top, 0))
        tl.store(sizes + tl.num_programs(0) + tl.program_id(0), tl.max(top_of_bounds, 0))


@triton.jit
def of_programs(sums, whole, sizes, largest, programs, columns, SIZES: tl.constexpr, P: tl.constexpr, C: tl.constexpr):
    """whole [columns] = the sum over programs of sums [programs columns], P programs and C columns at a time.

    And of so many SIZES [SIZES programs] the largest, which lie four numbers apart.
    """
    if SIZES:  # noqa: SIM102 - known when compiled, the other is not
        if tl.program_id(0) < SIZES:
            sizes += tl.program_id(0) * programs
            most = tl.zeros([P * C], tl.int32)
            for first in range(0, programs, P * C):
                program = first + tl.arange(0, P * C)
                most = tl.maximum(most, tl.load(sizes + program, mask=program < programs, other=0))
            tl.store(largest + 4 * tl.program_id(0), tl.max(most, 0))
    column = tl.program_id(0) * C + tl.arange(0, C)
    within = (column < columns)[None, :]
    total = tl.zeros([P, C], tl.float32)
    for first in range(0, programs, P):
        program = first + tl.arange(0, P)
        at = program.to(tl.int64)[:, None] * columns + column[None, :]
        total += tl.load(sums + at, mask=(program < programs)[:, None] & within, other=0.0)
    tl.store(whole + column, tl.sum(total, 0), mask=column < columns)
