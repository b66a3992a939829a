"""Gradients of several maps laid side by side, as a program for a GPU, which sums their rows as it passes.

Shapes: R rows and C columns at a time; all maps together have COLUMNS.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def side_by_side(
    first, second, third, whole, sums, rows, of_first, of_second, of_third,
    FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """whole [rows COLUMNS] = first | second | third, of which each has its columns and its distance between rows;
    sums [programs COLUMNS] are those over the rows of a program. C columns are of one of them."""
    columns: tl.constexpr = FIRST + SECOND + THIRD
    start = tl.program_id(0) * C
    column = start + tl.arange(0, C)[None, :]
    total = tl.zeros([R, C], tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(rows, R), tl.num_programs(1)):
        row = (tile * R + tl.arange(0, R)).to(tl.int64)[:, None]
        there = row < rows
        # Of these three one is read.
        from_first = there & (column < FIRST)
        from_second = there & (column >= FIRST) & (column < FIRST + SECOND)
        from_third = there & (column >= FIRST + SECOND)
        found = tl.load(first + row * of_first + column, mask=from_first, other=0.0)
        found += tl.load(second + row * of_second + column - FIRST, mask=from_second, other=0.0)
        found += tl.load(third + row * of_third + column - (FIRST + SECOND), mask=from_third, other=0.0)
        tl.store(whole + row * columns + column, found, mask=there)
        total += found.to(tl.float32)
    at = tl.program_id(1).to(tl.int64) * columns + start + tl.arange(0, C)
    tl.store(sums + at, tl.sum(total, 0))
