"""Programs for a GPU: weights of a block in 8 bits, and how large what they make can be.

The arithmetic is that of `bounds.py`. Three launches do for a block what torch has dozens of operators for: all
weights are read for their sizes, these and what else bounds are made of become scales, and all weights are rounded.

Shapes: weights are project [P K], out [D V], inner [H K], outer [D H]; sizes [2 programs], by bits: the largest number
that a program met, and the largest sum of squares of a row (of a column, for the last weight).
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.power_programs import powers
from qkv.train.float8.rounding_programs import round_tile


@triton.jit
def bits_of(x):
    """Of the size of numbers: these order what is no number above all others."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def sizes_by_rows(weight, strip, rows, first, width, R: tl.constexpr, N: tl.constexpr):
    """The largest number of R rows, and the largest sum of squares of those from `first` on."""
    row = strip * R + tl.arange(0, R)
    there = (row < rows)[:, None]
    most = tl.zeros([R, N], tl.int32)
    squares = tl.zeros([R, N], tl.float32)
    for start in range(0, width, N):
        column = (start + tl.arange(0, N))[None, :]
        x = tl.load(weight + row[:, None] * width + column, mask=there & (column < width), other=0.0)
        most = tl.maximum(most, bits_of(x))
        squares += x * x
    longest = tl.where(row >= first, bits_of(tl.sum(squares, 1)), 0)
    return tl.max(tl.max(most, 1), 0), tl.max(longest, 0)


@triton.jit
def sizes_by_columns(weight, strip, rows, width, R: tl.constexpr, N: tl.constexpr):
    """The largest number of N columns, and the largest sum of squares of one."""
    column = (strip * N + tl.arange(0, N))[None, :]
    there = column < width
    most = tl.zeros([R, N], tl.int32)
    squares = tl.zeros([R, N], tl.float32)
    for start in range(0, rows, R):
        row = (start + tl.arange(0, R))[:, None]
        x = tl.load(weight + row * width + column, mask=there & (row < rows), other=0.0)
        most = tl.maximum(most, bits_of(x))
        squares += x * x
    return tl.max(tl.max(most, 1), 0), tl.max(bits_of(tl.sum(squares, 0)), 0)


@triton.jit
def weigh(
    project, out, inner, outer, sizes,
    P: tl.constexpr, K: tl.constexpr, D: tl.constexpr, V: tl.constexpr, H: tl.constexpr, VALUES: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, TALL: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Programs for strips of R rows of the first three weights, N columns at a time, and then for strips of C columns
    of the last one, TALL rows at a time. Of the projection's rows the last VALUES make values.
    """
    program = tl.program_id(0)
    of_project: tl.constexpr = (P + R - 1) // R
    of_out: tl.constexpr = of_project + (D + R - 1) // R
    of_inner: tl.constexpr = of_out + (H + R - 1) // R
    if program < of_project:
        most, longest = sizes_by_rows(project, program, P, P - VALUES, K, R, N)
    elif program < of_out:
        most, longest = sizes_by_rows(out, program - of_project, D, 0, V, R, N)
    elif program < of_inner:
        most, longest = sizes_by_rows(inner, program - of_out, H, 0, K, R, N)
    else:
        most, longest = sizes_by_columns(outer, program - of_inner, D, H, TALL, C)
    tl.store(sizes + program, most)
    tl.store(sizes + tl.num_programs(0) + program, longest)


@triton.jit
def largest_of(sizes, first, last, S: tl.constexpr):
    """Of sizes from first to last, as a number."""
    most = tl.zeros([S], tl.int32)
    for start in range(first, last, S):
        at = start + tl.arange(0, S)
        most = tl.maximum(most, tl.load(sizes + at, mask=at < last, other=0))
    return tl.max(most, 0).to(tl.float32, bitcast=True)


@triton.jit
def largest_number(x, THERE: tl.constexpr, COUNT: tl.constexpr, S: tl.constexpr):
    """Of a bias, or 0 where there is none."""
    most = tl.zeros([S], tl.int32)
    if THERE:
        for start in range(0, COUNT, S):
            at = start + tl.arange(0, S)
            most = tl.maximum(most, bits_of(tl.load(x + at, mask=at < COUNT, other=0.0).to(tl.float32)))
    return tl.max(most, 0).to(tl.float32, bitcast=True)


@triton.jit
def reach_of_norm(gain, shift, SHIFTED: tl.constexpr, K: tl.constexpr, S: tl.constexpr):
    """The largest number and the longest row that a norm can make."""
    far = tl.zeros([S], tl.int32)
    most = tl.zeros([S], tl.int32)
    squares = tl.zeros([S], tl.float32)
    for start in range(0, K, S):
        at = start + tl.arange(0, S)
        g = tl.abs(tl.load(gain + at, mask=at < K, other=0.0).to(tl.float32)) * K**0.5
        most = tl.maximum(most, bits_of(g))
        if SHIFTED:
            b = tl.load(shift + at, mask=at < K, other=0.0).to(tl.float32)
            squares += b * b
            g += tl.abs(b)
        far = tl.maximum(far, bits_of(g))
    longest = tl.max(most, 0).to(tl.float32, bitcast=True) + tl.sqrt(tl.sum(squares, 0))
    return tl.max(far, 0).to(tl.float32, bitcast=True), longest


@triton.jit
def store_powers(scales, number, largest, APART: tl.constexpr):
    """Its inverse and its power, and the power is what comes back."""
    strange = bits_of(largest) >= 0x7F800000
    inverse, power = powers(tl.where(strange, 0.0, largest), strange)
    tl.store(scales + 2 * number * APART, inverse)
    tl.store(scales + (2 * number + 1) * APART, power)
    return power


@triton.jit
def bound(
    sizes, gain, shift, second_gain, second_shift, value_bias, inner_bias, scales, of_columns,
    programs, slack, steepest,
    SHIFTED: tl.constexpr, SECOND_SHIFTED: tl.constexpr, VALUE_BIASED: tl.constexpr, INNER_BIASED: tl.constexpr,
    P: tl.constexpr, K: tl.constexpr, D: tl.constexpr, V: tl.constexpr, H: tl.constexpr, VALUES: tl.constexpr,
    R: tl.constexpr, APART: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """scales [9 2 APART]: inverse and power for each weight, then of what is read, of heads, of the second norm and of
    hidden units; last the reach. of_columns [V]: the power of `out` for each."""
    of_project: tl.constexpr = (P + R - 1) // R
    of_out: tl.constexpr = of_project + (D + R - 1) // R
    of_inner: tl.constexpr = of_out + (H + R - 1) // R
    store_powers(scales, 0, largest_of(sizes, 0, of_project, S), APART)
    power = store_powers(scales, 1, largest_of(sizes, of_project, of_out, S), APART)
    for start in range(0, V, S):
        at = start + tl.arange(0, S)
        tl.store(of_columns + at, tl.zeros([S], tl.float32) + power, mask=at < V)
    store_powers(scales, 2, largest_of(sizes, of_out, of_inner, S), APART)
    store_powers(scales, 3, largest_of(sizes, of_inner, programs, S), APART)
    squares = sizes + programs
    far, longest = reach_of_norm(gain, shift, SHIFTED, K, S)
    values = tl.sqrt(largest_of(squares, 0, of_project, S))
    store_powers(scales, 4, far, APART)
    heads = slack * (longest * values + largest_number(value_bias, VALUE_BIASED, VALUES, S))
    store_powers(scales, 5, heads, APART)
    far, longest = reach_of_norm(second_gain, second_shift, SECOND_SHIFTED, K, S)
    units = tl.sqrt(largest_of(squares, of_out, of_inner, S))
    store_powers(scales, 6, far, APART)
    hidden = slack * (longest * units + largest_number(inner_bias, INNER_BIASED, H, S))
    store_powers(scales, 7, hidden, APART)
    tl.store(scales + 16 * APART, slack * steepest * tl.sqrt(largest_of(squares, of_inner, programs, S)))


@triton.jit
def round_weights(
    project, out, inner, outer, scales,
    project_rows, project_across, out_rows, out_across, inner_rows, inner_across, outer_rows, outer_across,
    P: tl.constexpr, K: tl.constexpr, D: tl.constexpr, V: tl.constexpr, H: tl.constexpr,
    APART: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """All of them by rows and by columns."""
    program = tl.program_id(0)
    by_k: tl.constexpr = (K + N - 1) // N
    by_v: tl.constexpr = (V + N - 1) // N
    by_h: tl.constexpr = (H + N - 1) // N
    of_project: tl.constexpr = (P + 4 * R - 1) // (4 * R) * by_k
    of_out: tl.constexpr = of_project + (D + 4 * R - 1) // (4 * R) * by_v
    of_inner: tl.constexpr = of_out + (H + 4 * R - 1) // (4 * R) * by_k
    if program < of_project:
        tile = program
        round_tile(project, scales, project_rows, project_across, tile // by_k, tile % by_k, P, K, 0, "", R, N)
    elif program < of_out:
        tile = program - of_project
        scales += 2 * APART
        round_tile(out, scales, out_rows, out_across, tile // by_v, tile % by_v, D, V, 0, "", R, N)
    elif program < of_inner:
        tile = program - of_out
        scales += 4 * APART
        round_tile(inner, scales, inner_rows, inner_across, tile // by_k, tile % by_k, H, K, 0, "", R, N)
    else:
        tile = program - of_inner
        scales += 6 * APART
        round_tile(outer, scales, outer_rows, outer_across, tile // by_h, tile % by_h, D, H, 0, "", R, N)
