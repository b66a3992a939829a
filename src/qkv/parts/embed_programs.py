"""Gradients of learned vectors, each the sum of those of the slots that took it, as programs for a GPU.

Slots come sorted by their token, so that equal ones are neighbours: a run. Programs have as many slots each, whatever
the runs: what is of one program alone it writes itself, and of a run that goes on beyond it a part, all of which are
then summed from left to right. So a token that half of all slots have takes no longer than others, and no sum depends
on who comes first.

Shapes: K slots of a program, D columns; P programs whose parts are summed at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _in_runs(x, token, y, next_token):
    return y + tl.where(token == next_token, x, 0.0), next_token


@triton.jit
def sum_runs(
    above, tokens, order, gradient, heads, tails, count,
    WIDTH: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """gradient[t] = the sum of above[order] over a run of tokens t that begins and ends here.

    heads[program] is that of a run that began before, tails[program] of one that begins here and goes on.
    """
    tile, column = tl.program_id(0), tl.program_id(1) * D + tl.arange(0, D)[None, :]
    place = tile * K + tl.arange(0, K)
    there, within = place < count, column < WIDTH
    token = tl.load(tokens + place, mask=there, other=-1)
    after = tl.load(tokens + place + 1, mask=place + 1 < count, other=-1)
    first = tl.load(tokens + tile * K + tl.zeros([K], tl.int32))
    before = tl.load(tokens + tile * K - 1 + tl.zeros([K], tl.int32), mask=place >= K, other=-1)
    row = tl.load(order + place, mask=there, other=0)[:, None]
    x = tl.load(above + row * WIDTH + column, mask=there[:, None] & within, other=0.0)
    sums, _ = tl.associative_scan((x, token[:, None] + tl.zeros([K, D], tl.int32)), 0, _in_runs)
    ends, stops = there & (token != after), there & (place == tile * K + K - 1)
    from_left = (token == first) & (first == before)
    at = (tl.zeros([K], tl.int64) + tile)[:, None] * WIDTH + column
    tl.store(gradient + token.to(tl.int64)[:, None] * WIDTH + column, sums, mask=(ends & ~from_left)[:, None] & within)
    tl.store(heads + at, sums, mask=((ends | stops) & from_left)[:, None] & within)
    tl.store(tails + at, sums, mask=(stops & ~ends & ~from_left)[:, None] & within)


@triton.jit
def sum_parts(
    tokens, gradient, heads, tails, programs,
    WIDTH: tl.constexpr, K: tl.constexpr, P: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """gradient[t] = tails + heads + … of a run that began in this program of `sum_runs`, if one goes on beyond it."""
    tile, column = tl.program_id(0), tl.program_id(1) * D + tl.arange(0, D)
    within = column < WIDTH
    run, after = tl.load(tokens + tile * K + K - 1), tl.load(tokens + tile * K + K)
    first, before = tl.load(tokens + tile * K), tl.load(tokens + tile * K - 1, mask=tile > 0, other=-1)
    if (run == after) & ((run != first) | (run != before)):
        total = tl.load(tails + tile.to(tl.int64) * WIDTH + column, mask=within, other=0.0)
        begin, goes_on = tile + 1, 1
        while goes_on > 0:
            other = begin + tl.arange(0, P)
            same = tl.load(tokens + other * K, mask=other < programs, other=-1) == run
            at = other.to(tl.int64)[:, None] * WIDTH + column[None, :]
            total += tl.sum(tl.load(heads + at, mask=same[:, None] & within[None, :], other=0.0), 0)
            begin += P
            goes_on = tl.where(tl.sum(same.to(tl.int32), 0) == P, 1, 0)
        tl.store(gradient + run.to(tl.int64) * WIDTH + column, total, mask=within)
