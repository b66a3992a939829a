"""FlashAttention's way back on a GPU: weights are made again, tile by tile, from sums that were kept. [dao2022 alg.4]

Two programs, one for the gradients of queries and one for those of keys and values: each adds up what it writes by
itself, so that the same input gives the same gradient, bit for bit. (The gradient of a bias is the exception where what
is seen is no band: programs add to it as they come. For bands see `flash_bias_programs.py`.)

Shapes: M queries and N keys of a program's step, D width of a key, E of a value (both filled up to a power of two).
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.attention.kernels.flash_dropout_programs import lot_of, stays
from qkv.parts.attention.kernels.flash_programs import corner_of, log2_e, reach_of, seen_of, tile_of


@triton.jit
def difference_of(o, above, difference, heads, queries, e, M: tl.constexpr, E: tl.constexpr):
    """D = Σ_e o·do. [dao2022 alg.4, line 4]"""
    row, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    query, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, E)
    places = (row * queries + query[:, None]) * heads * e + head * e + column[None, :]
    inside = (query[:, None] < queries) & (column[None, :] < e)
    product = tl.load(o + places, mask=inside, other=0.0).to(tl.float32)
    product *= tl.load(above + places, mask=inside, other=0.0).to(tl.float32)
    where = difference + tl.program_id(1).to(tl.int64) * queries + query
    tl.store(where, tl.sum(product, 1), mask=query < queries)


@triton.jit
def _back_to_queries(
    dq, dbias, q, k, v, bias, above, log_sum, difference, tiles, which, patterns, key_runs, query, query_run,
    keys, queries, k_stride, v_stride, bias_query, dbias_query, first, last, gap, length, least, most, scale, d, e,
    lot, other_lot, dropped, grown,
    PARTIAL: tl.constexpr, BAND: tl.constexpr, RUNS: tl.constexpr, BIASED: tl.constexpr, LEARNED: tl.constexpr,
    DROPS: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    inner = tl.arange(0, N)
    for step in range(first, last):
        corner = corner_of(tiles, step, gap, length, BAND, TILE, N)
        key = corner + inner
        kt = tile_of(k, corner, inner, tl.arange(0, D), k_stride, keys, d, FITS, True)  # [D N]
        vt = tile_of(v, corner, inner, tl.arange(0, E), v_stride, keys, e, FITS, True)  # [E N]
        s = tl.dot(q, kt, input_precision=PRECISION)
        dp = tl.dot(above, vt, input_precision=PRECISION)
        if BIASED:
            bounded = tl.minimum(query, queries - 1)
            places = bias + bounded[:, None] * bias_query + key[None, :]
            added = tl.load(places, mask=key[None, :] < keys, other=0.0).to(tl.float32) * log2_e()
            p = tl.exp2(s * scale + added - log_sum[:, None])
        else:
            p = tl.exp2(s * scale - log_sum[:, None])
        if PARTIAL:
            run = query_run
            if RUNS:
                run = tl.load(key_runs + key, mask=key < keys, other=0)
            seen = seen_of(
                patterns, which, step, query, key, keys, least, most, query_run, run, BAND, RUNS, False, TILE, WORD, N
            )
            p = tl.where(seen, p, 0.0)
        if DROPS:
            dp = tl.where(stays(lot, other_lot, query, key, keys, dropped, False), dp * grown, 0.0)
        ds = p * (dp - difference[:, None])
        if LEARNED:
            places = dbias + query[:, None] * dbias_query + key[None, :]
            tl.atomic_add(places, ds, mask=(query[:, None] < queries) & (key[None, :] < keys), sem="relaxed")
        dq = tl.dot(ds.to(kt.dtype), tl.trans(kt), dq, input_precision=PRECISION)
    return dq


@triton.jit
def backward_queries(
    q, k, v, bias, above, log_sum, difference, seed, dq, dbias, begin, partial, tiles, which, patterns,
    query_runs, key_runs, met,
    q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    bias_row, bias_head, bias_query, dbias_row, dbias_head, dbias_query,
    heads, shared_by, queries, keys, map_rows, least, most, scale, d, e, dropped, grown,
    BAND: tl.constexpr, RUNS: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr, LEARNED: tl.constexpr,
    FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """dq = dS k, block of queries by block of queries, and the gradient of the bias with it."""
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * M
    row, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    inner = tl.arange(0, M)
    query = start + inner
    q_tile = tile_of(q + row * q_row + head * q_head, start, inner, tl.arange(0, D), q_stride, queries, d, FITS, False)
    above_tile = tile_of(
        above + (row * queries * heads + head) * e, start, inner, tl.arange(0, E), heads * e, queries, e, FITS, False
    )
    rows = tl.program_id(1).to(tl.int64) * queries + query
    inside = query < queries
    sums = tl.load(log_sum + rows, mask=inside, other=float("inf")) * log2_e()
    differences = tl.load(difference + rows, mask=inside, other=0.0)
    k += row * k_row + head // shared_by * k_head
    v += row * v_row + head // shared_by * v_head
    bias += row * bias_row + head * bias_head
    dbias += row * dbias_row + head * dbias_head
    map_row = tl.minimum(row, map_rows - 1)
    key_runs += map_row * keys
    run = inner
    if RUNS:
        run = tl.load(query_runs + map_row * queries + query, mask=inside, other=0)
    place = map_row * tl.cdiv(queries, TILE) + start // TILE
    whole, to, first, last, gap, length = reach_of(
        begin, partial, met, place, start, -most, -least, keys, BAND, RUNS, TILE, M, N
    )
    lot, other_lot = 0, 0
    if DROPS:
        lot, other_lot = lot_of(seed, tl.program_id(1))
    gradient = tl.zeros([M, D], tl.float32)
    if not RUNS:
        gradient = _back_to_queries(
            gradient, dbias, q_tile, k, v, bias, above_tile, sums, differences, tiles, which, patterns, key_runs,
            query, run, keys, queries, k_stride, v_stride, bias_query, dbias_query, whole, to, to, 0, least, most,
            scale * log2_e(), d, e, lot, other_lot, dropped, grown,
            False, BAND, RUNS, BIASED, LEARNED, DROPS, FITS, PRECISION, TILE, WORD, N, D, E,
        )  # fmt: skip
    gradient = _back_to_queries(
        gradient, dbias, q_tile, k, v, bias, above_tile, sums, differences, tiles, which, patterns, key_runs,
        query, run, keys, queries, k_stride, v_stride, bias_query, dbias_query, first, last, gap, length, least, most,
        scale * log2_e(), d, e, lot, other_lot, dropped, grown,
        True, BAND, RUNS, BIASED, LEARNED, DROPS, FITS, PRECISION, TILE, WORD, N, D, E,
    )  # fmt: skip
    column = tl.arange(0, D)
    places = dq + (row * queries + start) * heads * d + inner[:, None] * heads * d + head * d + column[None, :]
    stored = (gradient * scale).to(dq.dtype.element_ty)
    tl.store(places, stored, mask=inside[:, None] & (column[None, :] < d))


@triton.jit
def _back_to_keys(
    dk, dv, q, k, v, bias, above, log_sum, difference, tiles, which, patterns, query_runs, key, key_run, queries, keys,
    q_stride, o_stride, bias_query, first, last, gap, length, least, most, scale, d, e,
    lot, other_lot, dropped, grown,
    PARTIAL: tl.constexpr, BAND: tl.constexpr, RUNS: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr,
    FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """With scores turned on their side, keys down and queries across, no matrix has to be turned in between."""
    inner = tl.arange(0, M)
    for step in range(first, last):
        corner = corner_of(tiles, step, gap, length, BAND, TILE, M)
        query = corner + inner
        qt = tile_of(q, corner, inner, tl.arange(0, D), q_stride, queries, d, FITS, True)  # [D M]
        do = tile_of(above, corner, inner, tl.arange(0, E), o_stride, queries, e, FITS, False)  # [M E]
        if FITS:
            sums = tl.load(log_sum + query) * log2_e()
            differences = tl.load(difference + query)
        else:
            sums = tl.load(log_sum + query, mask=query < queries, other=float("inf")) * log2_e()
            differences = tl.load(difference + query, mask=query < queries, other=0.0)
        s = tl.dot(k, qt, input_precision=PRECISION)  # [N M]
        if BIASED:
            bounded = tl.minimum(query, queries - 1)
            places = bias + bounded[None, :] * bias_query + key[:, None]
            added = tl.load(places, mask=key[:, None] < keys, other=0.0).to(tl.float32) * log2_e()
            p = tl.exp2(s * scale + added - sums[None, :])
        else:
            p = tl.exp2(s * scale - sums[None, :])
        if PARTIAL:
            run = key_run
            if RUNS:
                run = tl.load(query_runs + query, mask=query < queries, other=0)
            seen = seen_of(
                patterns, which, step, query, key, keys, least, most, run, key_run, BAND, RUNS, True, TILE, WORD, M
            )
            p = tl.where(seen, p, 0.0)
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)  # [N M]
        if DROPS:
            stay = stays(lot, other_lot, query, key, keys, dropped, True)
            dv = tl.dot(tl.where(stay, p * grown, 0.0).to(do.dtype), do, dv, input_precision=PRECISION)
            dp = tl.where(stay, dp * grown, 0.0)
        else:
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        ds = p * (dp - differences[None, :])
        dk = tl.dot(ds.to(qt.dtype), tl.trans(qt), dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def backward_keys(
    q, k, v, bias, above, log_sum, difference, seed, dk, dv, begin, partial, tiles, which, patterns,
    query_runs, key_runs, met,
    q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    bias_row, bias_head, bias_query, heads, shared_by, queries, keys, map_rows, least, most, scale, d, e,
    dropped, grown,
    BAND: tl.constexpr, RUNS: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr, FITS: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """dk = dSᵀ q and dv = Pᵀ do, block of keys by block of keys, summed over the query heads that share them."""
    start, key_heads = tl.program_id(0) * N, heads // shared_by
    row, key_head = (tl.program_id(1) // key_heads).to(tl.int64), (tl.program_id(1) % key_heads).to(tl.int64)
    inner = tl.arange(0, N)
    key = start + inner
    k_tile = tile_of(k + row * k_row + key_head * k_head, start, inner, tl.arange(0, D), k_stride, keys, d, FITS, False)
    v_tile = tile_of(v + row * v_row + key_head * v_head, start, inner, tl.arange(0, E), v_stride, keys, e, FITS, False)
    map_row = tl.minimum(row, map_rows - 1)
    query_runs += map_row * queries
    run = inner
    if RUNS:
        run = tl.load(key_runs + map_row * keys + key, mask=key < keys, other=0)
    place = map_row * tl.cdiv(keys, TILE) + start // TILE
    whole, to, first, last, gap, length = reach_of(
        begin, partial, met, place, start, least, most, queries, BAND, RUNS, TILE, N, M
    )
    to_key, to_value = tl.zeros([N, D], tl.float32), tl.zeros([N, E], tl.float32)
    for head in range(key_head * shared_by, (key_head + 1) * shared_by):
        own_q, own_above = q + row * q_row + head * q_head, above + (row * queries * heads + head) * e
        own_bias, line = bias + row * bias_row + head * bias_head, (row * heads + head) * queries
        lot, other_lot = 0, 0
        if DROPS:
            lot, other_lot = lot_of(seed, row * heads + head)
        if not RUNS:
            to_key, to_value = _back_to_keys(
                to_key, to_value, own_q, k_tile, v_tile, own_bias, own_above, log_sum + line, difference + line,
                tiles, which, patterns, query_runs, key, run, queries, keys, q_stride, heads * e, bias_query,
                whole, to, to, 0, least, most, scale * log2_e(), d, e, lot, other_lot, dropped, grown,
                False, BAND, RUNS, BIASED, DROPS, FITS, PRECISION, TILE, WORD, M, D, E,
            )  # fmt: skip
        to_key, to_value = _back_to_keys(
            to_key, to_value, own_q, k_tile, v_tile, own_bias, own_above, log_sum + line, difference + line,
            tiles, which, patterns, query_runs, key, run, queries, keys, q_stride, heads * e, bias_query,
            first, last, gap, length, least, most, scale * log2_e(), d, e, lot, other_lot, dropped, grown,
            True, BAND, RUNS, BIASED, DROPS, FITS, PRECISION, TILE, WORD, M, D, E,
        )  # fmt: skip
    inside = key[:, None] < keys
    column = tl.arange(0, D)
    places = dk + (row * keys + start) * key_heads * d + inner[:, None] * key_heads * d + key_head * d
    tl.store(places + column[None, :], (to_key * scale).to(dk.dtype.element_ty), mask=inside & (column[None, :] < d))
    column = tl.arange(0, E)
    places = dv + (row * keys + start) * key_heads * e + inner[:, None] * key_heads * e + key_head * e
    tl.store(places + column[None, :], to_value.to(dv.dtype.element_ty), mask=inside & (column[None, :] < e))
