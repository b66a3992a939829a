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
    STAGES: tl.constexpr,
):  # fmt: skip
    """whole [rows COLUMNS] = first | second | third, of which each has its columns and its distance between rows;
    sums [programs COLUMNS] are those over the rows of a program. C columns are of one of them."""
    columns: tl.constexpr = FIRST + SECOND + THIRD
    start = tl.program_id(0) * C
    if start < FIRST:
        part, begin, step = first, 0, of_first
    elif start < FIRST + SECOND:
        part, begin, step = second, FIRST, of_second
    else:
        part, begin, step = third, FIRST + SECOND, of_third
    column = start + tl.arange(0, C)[None, :]
    total = tl.zeros([R, C], tl.float32)
    for tile in tl.range(tl.program_id(1), tl.cdiv(rows, R), tl.num_programs(1), num_stages=STAGES):
        row = (tile * R + tl.arange(0, R)).to(tl.int64)[:, None]
        found = tl.load(part + row * step + (column - begin), mask=row < rows, other=0.0)
        tl.store(whole + row * columns + column, found, mask=row < rows)
        total += found.to(tl.float32)
    at = tl.program_id(1).to(tl.int64) * columns + start + tl.arange(0, C)
    tl.store(sums + at, tl.sum(total, 0))
