"""Norms of whole rows as programs for a GPU, for a stream whose biases are still waiting to be added.

`in_place.py` specifies them. A program holds its rows from the moment it has read them: each number is read once and
written once, whatever is done in between, so y may be x itself.

Shapes: R rows of a program, D columns (filled up from WIDTH).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def norm(
    x, places, waiting, bias, gain, shift, y, carried, rows, period, epsilon,
    PLACED: tl.constexpr, WAITING: tl.constexpr, BIASED: tl.constexpr, CARRIES: tl.constexpr, SHIFTED: tl.constexpr,
    RMS: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, D: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """y[row] = norm(x[row] + places[row % period] + waiting + bias), statistics in float32.

    carried = waiting + bias, by the first program.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, D)
    within = column < WIDTH
    inside = (row < rows)[:, None] & within[None, :]
    there = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    z = tl.load(x + there, mask=inside, other=0.0).to(tl.float32)
    if PLACED:
        place = (row % period).to(tl.int64)[:, None] * WIDTH + column[None, :]
        z += tl.load(places + place, mask=inside, other=0.0).to(tl.float32)
    if WAITING or BIASED:
        added = tl.zeros([D], tl.float32)
        if WAITING:
            added += tl.load(waiting + column, mask=within, other=0.0)
        if BIASED:
            added += tl.load(bias + column, mask=within, other=0.0).to(tl.float32)
        z += added[None, :]
        if CARRIES:  # noqa: SIM102 - known when compiled, the other is not
            if tl.program_id(0) == 0:
                tl.store(carried + column, added, mask=within)
    if not RMS:
        mean = tl.sum(z, 1) / WIDTH
        z = tl.where(within[None, :], z - mean[:, None], 0.0)
    rate = tl.rsqrt(tl.sum(z * z, 1) / WIDTH + epsilon)
    made = z * rate[:, None] * tl.load(gain + column, mask=within, other=0.0).to(tl.float32)[None, :]
    if SHIFTED:
        made += tl.load(shift + column, mask=within, other=0.0).to(tl.float32)[None, :]
    tl.store(y + there, made.to(y.dtype.element_ty), mask=inside)
