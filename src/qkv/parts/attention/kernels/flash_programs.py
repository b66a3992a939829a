"""FlashAttention's programs for a GPU: the algorithm of `flash_tiled.py`, each on some queries at a time.

What a program has to look at it is told in one of two ways. Where a rule is a band (`bands.py`), two numbers say which
keys a block of queries meets, and steps follow each other without a gap. Else the program reads the list of its tiles
from a `TileMap` (`blocks.py`), and the bits of those seen in part. Either way it first passes over what is seen whole,
then over what is seen in part. Scores are kept times log₂e, so that the exponential is the hardware's own, 2^x.

Shapes: M queries and N keys of a program's step, D width of a key, E of a value (both filled up to a power of two).
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.attention.kernels.flash_dropout_programs import lot_of, stays


@triton.jit
def log2_e():
    return 1.4426950408889634


@triton.jit
def tile_of(of, corner, row, column, stride, rows, columns, FITS: tl.constexpr, TRANSPOSED: tl.constexpr):
    """[rows columns] of a matrix from `corner` on, `stride` between its rows; what lies beyond its ends is 0."""
    of += corner.to(tl.int64) * stride
    if TRANSPOSED:
        places = of + row[None, :] * stride + column[:, None]
        inside = (corner + row[None, :] < rows) & (column[:, None] < columns)
    else:
        places = of + row[:, None] * stride + column[None, :]
        inside = (corner + row[:, None] < rows) & (column[None, :] < columns)
    if FITS:
        found = tl.load(places)
    else:
        found = tl.load(places, mask=inside, other=0.0)
    return found


@triton.jit
def reach_of(
    begin, partial, met, place, start, low, high, others,
    BAND: tl.constexpr, RUNS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """(first and last step of what is seen whole; first, last, gap and its length of what is seen in part).

    Of a band, the slots from `start` on, SIZE of them, meet those of the other side from start + low to
    start + SIZE - 1 + high, and all of them meet those from start + SIZE - 1 + low to start + high.
    """
    if BAND:
        first, last = tl.maximum(start + low, 0), tl.maximum(tl.minimum(start + SIZE + high, others), 0)
        if RUNS:  # where documents end is looked up token by token
            first = tl.maximum(first, tl.load(met + 2 * place))
            last = tl.minimum(last, tl.load(met + 2 * place + 1))
        first = first // STEP
        last = tl.maximum(tl.cdiv(last, STEP), first)
        whole, to = first, first
        if not RUNS:
            whole = tl.cdiv(tl.maximum(start + SIZE - 1 + low, 0), STEP)
            whole = tl.minimum(tl.maximum(whole, first), last)
            to = tl.maximum(tl.minimum(start + high + 1, others), 0) // STEP
            to = tl.minimum(tl.maximum(to, whole), last)
        last, gap, length = last - (to - whole), whole, to - whole
    else:
        STEPS: tl.constexpr = TILE // STEP
        whole = tl.load(begin + place) * STEPS
        to = tl.load(partial + place) * STEPS
        last = tl.load(begin + place + 1) * STEPS
        first, gap, length = to, last, 0
    return whole, to, first, last, gap, length


@triton.jit
def corner_of(tiles, step, gap, length, BAND: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):
    """The first slot of a step."""
    STEPS: tl.constexpr = TILE // STEP
    if BAND:
        corner = tl.where(step < gap, step, step + length) * STEP
    else:
        corner = tl.load(tiles + step // STEPS) * TILE + step % STEPS * STEP
    return corner


@triton.jit
def seen_of(
    patterns, which, step, query, key, keys, least, most, query_run, key_run,
    BAND: tl.constexpr, RUNS: tl.constexpr, TURNED: tl.constexpr, TILE: tl.constexpr, WORD: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """What is seen in a step: queries down and keys across, or TURNED.

    Of a band, how far a key stands before its query says it all, and the run that each belongs to. Else the bits of
    the tile's pattern do, read word by word.
    """
    if BAND:
        if TURNED:
            distance, inside = query[None, :] - key[:, None], key[:, None] < keys
            if RUNS:
                inside &= (query_run[None, :] == key_run[:, None]) & (key_run[:, None] > 0)
        else:
            distance, inside = query[:, None] - key[None, :], key[None, :] < keys
            if RUNS:
                inside &= (query_run[:, None] == key_run[None, :]) & (key_run[None, :] > 0)
        seen = (distance >= least) & (distance <= most) & inside
    else:
        STEPS: tl.constexpr = TILE // STEP
        own = patterns + tl.load(which + step // STEPS) * (TILE * (TILE // WORD))
        QUERIES: tl.constexpr = query.shape[0]
        KEYS: tl.constexpr = key.shape[0]
        word = tl.min(key, 0) % TILE // WORD + tl.arange(0, KEYS // WORD)
        bit, inner = tl.arange(0, WORD), query % TILE
        if TURNED:
            words = tl.load(own + inner[None, :] * (TILE // WORD) + word[:, None])  # [words queries]
            seen = tl.reshape((words[:, None, :] >> bit[None, :, None]) & 1, [KEYS, QUERIES]) != 0
        else:
            words = tl.load(own + inner[:, None] * (TILE // WORD) + word[None, :])  # [queries words]
            seen = tl.reshape((words[:, :, None] >> bit[None, None, :]) & 1, [QUERIES, KEYS]) != 0
    return seen


@triton.jit
def _pass_over(
    gathered, total, largest, q, k, v, bias, tiles, which, patterns, key_runs, query, query_run, keys,
    k_stride, v_stride, bias_query, first, last, gap, length, least, most, scale, d, e, lot, other_lot, dropped,
    PARTIAL: tl.constexpr, BAND: tl.constexpr, RUNS: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr,
    FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Gather the softmax over the steps `first` to `last`. [dao2022 alg.1, lines 6 to 13]"""
    inner = tl.arange(0, N)
    for step in range(first, last):
        corner = corner_of(tiles, step, gap, length, BAND, TILE, N)
        key = corner + inner
        kt = tile_of(k, corner, inner, tl.arange(0, D), k_stride, keys, d, FITS, True)  # [D N]
        s = tl.dot(q, kt, input_precision=PRECISION)  # [M N]
        factor = scale
        if BIASED:
            places = bias + query[:, None] * bias_query + key[None, :]
            s = s * scale + tl.load(places, mask=key[None, :] < keys, other=0.0).to(tl.float32) * log2_e()
            factor = 1.0
        if PARTIAL:
            run = query_run
            if RUNS:
                run = tl.load(key_runs + key, mask=key < keys, other=0)
            seen = seen_of(
                patterns, which, step, query, key, keys, least, most, query_run, run, BAND, RUNS, False, TILE, WORD, N
            )
            s = tl.where(seen, s, float("-inf"))
        higher = tl.maximum(largest, tl.max(s, 1) * factor)
        level = higher
        if PARTIAL or BIASED:  # nothing seen yet: 2^(-∞ - 0) is 0
            level = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s * factor - level[:, None])
        shrink = tl.exp2(largest - level)
        total = total * shrink + tl.sum(p, 1)
        if DROPS:
            p = tl.where(stays(lot, other_lot, query, key, keys, dropped, False), p, 0.0)
        gathered = gathered * shrink[:, None]
        vs = tile_of(v, corner, inner, tl.arange(0, E), v_stride, keys, e, FITS, False)  # [N E]
        gathered = tl.dot(p.to(vs.dtype), vs, gathered, input_precision=PRECISION)
        largest = higher
    return gathered, total, largest


@triton.jit
def forward(
    q, k, v, bias, o, log_sum, seed, begin, partial, tiles, which, patterns, query_runs, key_runs, met,
    q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    bias_row, bias_head, bias_query, heads, shared_by, queries, keys, map_rows, least, most, scale, d, e,
    dropped, grown,
    BAND: tl.constexpr, RUNS: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr, FITS: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The scale is above 0: the largest score is then that of the largest product."""
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * M  # under a look-ahead mask the last have most to do
    row, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    inner = tl.arange(0, M)
    query = start + inner
    q_tile = tile_of(q + row * q_row + head * q_head, start, inner, tl.arange(0, D), q_stride, queries, d, FITS, False)
    k += row * k_row + head // shared_by * k_head
    v += row * v_row + head // shared_by * v_head
    bias += row * bias_row + head * bias_head
    map_row = tl.minimum(row, map_rows - 1)
    key_runs += map_row * keys
    run = inner
    if RUNS:
        run = tl.load(query_runs + map_row * queries + query, mask=query < queries, other=0)
    place = map_row * tl.cdiv(queries, TILE) + start // TILE
    whole, to, first, last, gap, length = reach_of(
        begin, partial, met, place, start, -most, -least, keys, BAND, RUNS, TILE, M, N
    )
    gathered = tl.zeros([M, E], tl.float32)
    total = tl.zeros([M], tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    scale = scale * log2_e()
    lot, other_lot = 0, 0
    if DROPS:
        lot, other_lot = lot_of(seed, tl.program_id(1))
    bounded = query
    if BIASED:
        bounded = tl.minimum(query, queries - 1)  # a bias is read where it is
    if not RUNS:
        gathered, total, largest = _pass_over(
            gathered, total, largest, q_tile, k, v, bias, tiles, which, patterns, key_runs, bounded, run, keys,
            k_stride, v_stride, bias_query, whole, to, to, 0, least, most, scale, d, e, lot, other_lot, dropped,
            False, BAND, RUNS, BIASED, DROPS, FITS, PRECISION, TILE, WORD, N, D, E,
        )  # fmt: skip
    gathered, total, largest = _pass_over(
        gathered, total, largest, q_tile, k, v, bias, tiles, which, patterns, key_runs, bounded, run, keys,
        k_stride, v_stride, bias_query, first, last, gap, length, least, most, scale, d, e, lot, other_lot, dropped,
        True, BAND, RUNS, BIASED, DROPS, FITS, PRECISION, TILE, WORD, N, D, E,
    )  # fmt: skip
    nothing = total == 0.0
    gathered = gathered / tl.where(nothing, 1.0, total)[:, None]
    if DROPS:
        gathered = gathered * grown
    logarithm = tl.where(nothing, float("inf"), (largest + tl.log2(total)) / log2_e())
    tl.store(log_sum + tl.program_id(1).to(tl.int64) * queries + query, logarithm, mask=query < queries)
    column = tl.arange(0, E)
    inside = (query[:, None] < queries) & (column[None, :] < e)
    places = o + (row * queries + start) * heads * e + inner[:, None] * heads * e + head * e + column[None, :]
    tl.store(places, gathered.to(o.dtype.element_ty), mask=inside)
