"""Hashing and sorting for a GPU: from tokens to their order by bucket, in three programs.

Buckets are few, so they are sorted by counting: how many tokens of each bucket every block of a row has (whole numbers,
summed in any order), where in the sorted row each block's share of a bucket begins, and how many of a token's own
bucket stand before it in its block. Equal rows are sorted equally, whatever runs first.

Shapes: M tokens of a program, D width of a token (filled up to a power of two), W columns at a time, B tokens of a
block that is counted by itself. A line is a row, head and round.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _direction(tile, rotations, between, half, d, PRECISION: tl.constexpr, D: tl.constexpr, W: tl.constexpr):
    """[M]: the bucket of one rotation: which of its columns, or their opposites, is nearest. [kitaev2020 eq.4]

    Of equal ones the first, and columns before opposites, as in `argmax([xR; -xR])`.
    """
    M: tl.constexpr = tile.shape[0]
    highest, lowest = tl.full([M], float("-inf"), tl.float32), tl.full([M], float("inf"), tl.float32)
    high, low = tl.zeros([M], tl.int32), tl.zeros([M], tl.int32)
    component, column = tl.arange(0, D), tl.arange(0, W)
    for begin in range(0, half, W):
        there = begin + column < half
        places = rotations + component[:, None] * between + begin + column[None, :]
        columns = tl.load(places, mask=(component[:, None] < d) & there[None, :], other=0.0)
        turned = tl.dot(tile, columns, input_precision=PRECISION)  # [M W]
        value, which = tl.max(tl.where(there[None, :], turned, float("-inf")), 1, return_indices=True)
        high, highest = tl.where(value > highest, begin + which, high), tl.maximum(value, highest)
        value, which = tl.min(tl.where(there[None, :], turned, float("inf")), 1, return_indices=True)
        low, lowest = tl.where(value < lowest, begin + which, low), tl.minimum(value, lowest)
    return tl.where(-lowest > highest, half + low, high)


@triton.jit(do_not_specialize=["first", "second", "rounds", "blocks"])
def hashed(
    x, rotations, real, bucket, counts, x_row, x_head, x_stride, heads, rounds, length, first, second, blocks, d,
    PADDED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    B: tl.constexpr, M: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """The bucket of every token in every round, and how many of each bucket there are in a block and in all.

    There are `first` times `second` buckets, by two rotations where the second is more than 1; padding has one more.
    `counts` is [lines blocks+1 buckets] and begins with zeros; its last block counts them all.
    """
    line = tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    token, component = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    inside = token < length
    places = x + row * x_row + head * x_head + token[:, None].to(tl.int64) * x_stride + component[None, :]
    if FITS:
        tile = tl.load(places)
    else:
        tile = tl.load(places, mask=inside[:, None] & (component[None, :] < d), other=0.0)
    columns = first // 2 + second // 2
    between, bins = rounds * columns, first * second + 1
    own = rotations + head * d * between
    for round in range(rounds):
        number = _direction(tile, own + round * columns, between, first // 2, d, PRECISION, D, W)
        if second > 1:
            turn = own + round * columns + first // 2
            number += first * _direction(tile, turn, between, second // 2, d, PRECISION, D, W)
        number = tl.minimum(number, bins - 2)  # also of what is not a number
        if PADDED:
            number = tl.where(tl.load(real + row * length + token, mask=inside, other=0) != 0, number, bins - 1)
        own_line = line * rounds + round
        tl.store(bucket + own_line * length + token, number, mask=inside)
        block = own_line * (blocks + 1) + token // B
        tl.atomic_add(counts + block * bins + number, 1, mask=inside, sem="relaxed")
        whole = counts + (own_line * (blocks + 1) + blocks) * bins
        tl.atomic_add(whole + number, 1, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["bins", "blocks"])
def begun(counts, bins, blocks, R: tl.constexpr, W: tl.constexpr):
    """Counts become places: where in the sorted row each block's share of each bucket begins. R blocks at a time."""
    line = tl.program_id(1).to(tl.int64) * (blocks + 1)
    counts += line * bins
    totals = counts + blocks * bins
    column, rows = tl.arange(0, W), tl.arange(0, R)
    before = tl.zeros([W], tl.int32)
    for begin in range(0, tl.program_id(0) * W, W):
        before += tl.load(totals + begin + column)
    which = tl.program_id(0) * W + column
    inside = which < bins
    own = tl.load(totals + which, mask=inside, other=0)
    place = tl.sum(before, 0) + tl.cumsum(own, 0) - own
    for begin in range(0, blocks, R):
        block = begin + rows
        places = counts + block[:, None].to(tl.int64) * bins + which[None, :]
        there = (block[:, None] < blocks) & inside[None, :]
        counted = tl.load(places, mask=there, other=0)
        tl.store(places, place[None, :] + tl.cumsum(counted, 0) - counted, mask=there)
        place += tl.sum(counted, 0)


@triton.jit(do_not_specialize=["bins", "blocks"])
def placed(bucket, begins, order, length, slots, bins, blocks, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Every token's number to its place in the sorted row; M tokens look back over their block, N at a time."""
    line = tl.program_id(1).to(tl.int64)
    bucket += line * length
    token = tl.program_id(0) * M + tl.arange(0, M)
    inside = token < length
    number = tl.load(bucket + token, mask=inside, other=-1)
    block = tl.program_id(0) * M // B
    rank = tl.zeros([M], tl.int32)
    for begin in range(block * B, tl.program_id(0) * M + M, N):
        other = begin + tl.arange(0, N)
        theirs = tl.load(bucket + other, mask=other < length, other=-1)
        rank += tl.sum(((number[:, None] == theirs[None, :]) & (other[None, :] < token[:, None])).to(tl.int32), 1)
    begins += (line * (blocks + 1) + block) * bins
    place = tl.load(begins + number, mask=inside, other=0) + rank
    place = tl.where(inside, place, token)  # what fills up the row stands at its end already
    tl.store(order + line * slots + place, token, mask=token < slots)
