"""FlashAttention's programs for a GPU: the algorithm of `flash_tiled.py`, each on some queries or some keys.

A program reads the list of its tiles from a `TileMap`: it passes over those seen whole, then over those seen in part,
whose bits it reads. Scores are kept times log₂e, so that the exponential is the hardware's own, 2^x.

Shapes: M queries and N keys of a program's step, D width of a key, E of a value (both filled up to a power of two).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tile(of, row, column, stride, rows, columns, FITS: tl.constexpr, TRANSPOSED: tl.constexpr):
    """[rows columns] of a matrix with `stride` between its rows; what lies beyond its ends is 0."""
    if TRANSPOSED:
        places = of + row[None, :] * stride + column[:, None]
        inside = (row[None, :] < rows) & (column[:, None] < columns)
    else:
        places = of + row[:, None] * stride + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < columns)
    if FITS:
        return tl.load(places)
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def _seen(
    patterns, which, place, query, key, inner_query, inner_key, keys, least, most,
    BAND: tl.constexpr, TURNED: tl.constexpr, TILE: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    """What is seen of a tile: queries down and keys across, or TURNED.

    Where a rule is a band, how far a key stands before its query says it all. Else the bits of the tile's pattern do,
    read word by word; `inner_query` and `inner_key` count from the tile's corner.
    """
    if BAND:
        if TURNED:
            distance, inside = query[None, :] - key[:, None], key[:, None] < keys
        else:
            distance, inside = query[:, None] - key[None, :], key[None, :] < keys
        return (distance >= least) & (distance <= most) & inside
    own = patterns + tl.load(which + place) * (TILE * (TILE // WORD))
    QUERIES: tl.constexpr = inner_query.shape[0]
    KEYS: tl.constexpr = inner_key.shape[0]
    word = tl.min(inner_key, 0) // WORD + tl.arange(0, KEYS // WORD)
    bit = tl.arange(0, WORD)
    if TURNED:
        words = tl.load(own + inner_query[None, :] * (TILE // WORD) + word[:, None])  # [words queries]
        return tl.reshape((words[:, None, :] >> bit[None, :, None]) & 1, [KEYS, QUERIES]) != 0
    words = tl.load(own + inner_query[:, None] * (TILE // WORD) + word[None, :])  # [queries words]
    return tl.reshape((words[:, :, None] >> bit[None, None, :]) & 1, [QUERIES, KEYS]) != 0


@triton.jit
def _pass_over(
    gathered, total, largest, q, k, v, bias, tiles, which, patterns, query, keys, k_stride, v_stride, bias_query,
    first, last, least, most, scale, d, e,
    PARTIAL: tl.constexpr, BAND: tl.constexpr, BIASED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Gather the softmax over the tiles `first` to `last` of a list. [dao2022 alg.1, lines 6 to 13]"""
    STEPS: tl.constexpr = TILE // N
    for step in range(first * STEPS, last * STEPS):
        corner = tl.load(tiles + step // STEPS) * TILE
        inner = (step % STEPS) * N + tl.arange(0, N)
        key = corner + inner
        kt = _tile(k, key, tl.arange(0, D), k_stride, keys, d, FITS, True)  # [D N]
        s = tl.dot(q, kt, input_precision=PRECISION) * scale  # [M N]
        if BIASED:
            places = bias + query[:, None] * bias_query + key[None, :]
            s += tl.load(places, mask=key[None, :] < keys, other=0.0).to(tl.float32) * LOG2_E
        if PARTIAL:
            seen = _seen(
                patterns, which, step // STEPS, query, key, query % TILE, inner, keys, least, most,
                BAND, False, TILE, WORD,
            )  # fmt: skip
            s = tl.where(seen, s, float("-inf"))
        higher = tl.maximum(largest, tl.max(s, 1))
        level = higher
        if PARTIAL or BIASED:  # nothing seen yet: 2^(-∞ - 0) is 0
            level = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - level[:, None])
        shrink = tl.exp2(largest - level)
        total = total * shrink + tl.sum(p, 1)
        gathered = gathered * shrink[:, None]
        vs = _tile(v, key, tl.arange(0, E), v_stride, keys, e, FITS, False)  # [N E]
        gathered = tl.dot(p.to(vs.dtype), vs, gathered, input_precision=PRECISION)
        largest = higher
    return gathered, total, largest


@triton.jit
def forward(
    q, k, v, bias, o, log_sum, begin, partial, tiles, which, patterns,
    q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    bias_row, bias_head, bias_query, heads, shared_by, queries, keys, map_rows, least, most, scale, d, e,
    BAND: tl.constexpr, BIASED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # under a look-ahead mask the last have most to do: they go first
    row, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    query = block * M + tl.arange(0, M)
    own = q + row * q_row + head * q_head
    q_tile = _tile(own, query, tl.arange(0, D), q_stride, queries, d, FITS, False)
    k += row * k_row + head // shared_by * k_head
    v += row * v_row + head // shared_by * v_head
    bias += row * bias_row + head * bias_head
    place = tl.minimum(row, map_rows - 1) * tl.cdiv(queries, TILE) + block * M // TILE
    first, middle, last = tl.load(begin + place), tl.load(partial + place), tl.load(begin + place + 1)
    gathered = tl.zeros([M, E], tl.float32)
    total = tl.zeros([M], tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    scale = scale * LOG2_E
    bounded = tl.minimum(query, queries - 1)  # a bias is read where it is
    gathered, total, largest = _pass_over(
        gathered, total, largest, q_tile, k, v, bias, tiles, which, patterns, bounded, keys, k_stride, v_stride,
        bias_query, first, middle, least, most, scale, d, e,
        False, BAND, BIASED, FITS, PRECISION, TILE, WORD, M, N, D, E,
    )  # fmt: skip
    gathered, total, largest = _pass_over(
        gathered, total, largest, q_tile, k, v, bias, tiles, which, patterns, bounded, keys, k_stride, v_stride,
        bias_query, middle, last, least, most, scale, d, e,
        True, BAND, BIASED, FITS, PRECISION, TILE, WORD, M, N, D, E,
    )  # fmt: skip
    nothing = total == 0.0
    gathered = gathered / tl.where(nothing, 1.0, total)[:, None]
    logarithm = tl.where(nothing, float("inf"), (largest + tl.log2(total)) / LOG2_E)
    tl.store(log_sum + tl.program_id(1).to(tl.int64) * queries + query, logarithm, mask=query < queries)
    column = tl.arange(0, E)
    inside = (query[:, None] < queries) & (column[None, :] < e)
    places = o + (row * queries + query[:, None]) * heads * e + head * e + column[None, :]
    tl.store(places, gathered.to(o.dtype.element_ty), mask=inside)


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
    dq, dbias, q, k, v, bias, above, log_sum, difference, tiles, which, patterns, query, keys, queries,
    k_stride, v_stride, bias_query, dbias_query, first, last, least, most, scale, d, e,
    PARTIAL: tl.constexpr, BAND: tl.constexpr, BIASED: tl.constexpr, LEARNED: tl.constexpr,
    FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    STEPS: tl.constexpr = TILE // N
    for step in range(first * STEPS, last * STEPS):
        corner = tl.load(tiles + step // STEPS) * TILE
        inner = (step % STEPS) * N + tl.arange(0, N)
        key = corner + inner
        kt = _tile(k, key, tl.arange(0, D), k_stride, keys, d, FITS, True)  # [D N]
        vt = _tile(v, key, tl.arange(0, E), v_stride, keys, e, FITS, True)  # [E N]
        s = tl.dot(q, kt, input_precision=PRECISION) * scale
        if BIASED:
            bounded = tl.minimum(query, queries - 1)
            places = bias + bounded[:, None] * bias_query + key[None, :]
            s += tl.load(places, mask=key[None, :] < keys, other=0.0).to(tl.float32) * LOG2_E
        p = tl.exp2(s - log_sum[:, None])
        if PARTIAL:
            seen = _seen(
                patterns, which, step // STEPS, query, key, query % TILE, inner, keys, least, most,
                BAND, False, TILE, WORD,
            )  # fmt: skip
            p = tl.where(seen, p, 0.0)
        dp = tl.dot(above, vt, input_precision=PRECISION)
        ds = p * (dp - difference[:, None])
        if LEARNED:
            places = dbias + query[:, None] * dbias_query + key[None, :]
            tl.atomic_add(places, ds, mask=(query[:, None] < queries) & (key[None, :] < keys), sem="relaxed")
        dq = tl.dot(ds.to(kt.dtype), tl.trans(kt), dq, input_precision=PRECISION)
    return dq


@triton.jit
def backward_queries(
    q, k, v, bias, above, log_sum, difference, dq, dbias, begin, partial, tiles, which, patterns,
    q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    bias_row, bias_head, bias_query, dbias_row, dbias_head, dbias_query,
    heads, shared_by, queries, keys, map_rows, least, most, scale, d, e,
    BAND: tl.constexpr, BIASED: tl.constexpr, LEARNED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """dq = dS k, tile of queries by tile of queries, and the gradient of the bias with it."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    row, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    query = block * M + tl.arange(0, M)
    q_tile = _tile(q + row * q_row + head * q_head, query, tl.arange(0, D), q_stride, queries, d, FITS, False)
    above_tile = _tile(
        above + (row * queries * heads + head) * e, query, tl.arange(0, E), heads * e, queries, e, FITS, False
    )
    rows = tl.program_id(1).to(tl.int64) * queries + query
    inside = query < queries
    sums = tl.load(log_sum + rows, mask=inside, other=float("inf")) * LOG2_E
    differences = tl.load(difference + rows, mask=inside, other=0.0)
    k += row * k_row + head // shared_by * k_head
    v += row * v_row + head // shared_by * v_head
    bias += row * bias_row + head * bias_head
    dbias += row * dbias_row + head * dbias_head
    place = tl.minimum(row, map_rows - 1) * tl.cdiv(queries, TILE) + block * M // TILE
    first, middle, last = tl.load(begin + place), tl.load(partial + place), tl.load(begin + place + 1)
    gradient = tl.zeros([M, D], tl.float32)
    gradient = _back_to_queries(
        gradient, dbias, q_tile, k, v, bias, above_tile, sums, differences, tiles, which, patterns, query, keys,
        queries, k_stride, v_stride, bias_query, dbias_query, first, middle, least, most, scale * LOG2_E, d, e,
        False, BAND, BIASED, LEARNED, FITS, PRECISION, TILE, WORD, N, D, E,
    )  # fmt: skip
    gradient = _back_to_queries(
        gradient, dbias, q_tile, k, v, bias, above_tile, sums, differences, tiles, which, patterns, query, keys,
        queries, k_stride, v_stride, bias_query, dbias_query, middle, last, least, most, scale * LOG2_E, d, e,
        True, BAND, BIASED, LEARNED, FITS, PRECISION, TILE, WORD, N, D, E,
    )  # fmt: skip
    column = tl.arange(0, D)
    places = dq + (row * queries + query[:, None]) * heads * d + head * d + column[None, :]
    stored = (gradient * scale).to(dq.dtype.element_ty)
    tl.store(places, stored, mask=inside[:, None] & (column[None, :] < d))


@triton.jit
def _back_to_keys(
    dk, dv, q, k, v, bias, above, log_sum, difference, tiles, which, patterns, key, queries, keys,
    q_stride, o_stride, bias_query, first, last, least, most, scale, d, e,
    PARTIAL: tl.constexpr, BAND: tl.constexpr, BIASED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """With scores turned on their side, keys down and queries across, no matrix has to be turned in between."""
    STEPS: tl.constexpr = TILE // M
    for step in range(first * STEPS, last * STEPS):
        corner = tl.load(tiles + step // STEPS) * TILE
        inner = (step % STEPS) * M + tl.arange(0, M)
        query = corner + inner
        qt = _tile(q, query, tl.arange(0, D), q_stride, queries, d, FITS, True)  # [D M]
        do = _tile(above, query, tl.arange(0, E), o_stride, queries, e, FITS, False)  # [M E]
        inside = query < queries
        sums = tl.load(log_sum + query, mask=inside, other=float("inf")) * LOG2_E
        differences = tl.load(difference + query, mask=inside, other=0.0)
        s = tl.dot(k, qt, input_precision=PRECISION) * scale  # [N M]
        if BIASED:
            bounded = tl.minimum(query, queries - 1)
            places = bias + bounded[None, :] * bias_query + key[:, None]
            s += tl.load(places, mask=key[:, None] < keys, other=0.0).to(tl.float32) * LOG2_E
        p = tl.exp2(s - sums[None, :])
        if PARTIAL:
            seen = _seen(
                patterns, which, step // STEPS, query, key, inner, key % TILE, keys, least, most,
                BAND, True, TILE, WORD,
            )  # fmt: skip
            p = tl.where(seen, p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)  # [N M]
        ds = p * (dp - differences[None, :])
        dk = tl.dot(ds.to(qt.dtype), tl.trans(qt), dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def backward_keys(
    q, k, v, bias, above, log_sum, difference, dk, dv, begin, partial, tiles, which, patterns,
    q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    bias_row, bias_head, bias_query, heads, shared_by, queries, keys, map_rows, least, most, scale, d, e,
    BAND: tl.constexpr, BIASED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """dk = dSᵀ q and dv = Pᵀ do, tile of keys by tile of keys, summed over the query heads that share them."""
    block, key_heads = tl.program_id(0), heads // shared_by
    row, key_head = (tl.program_id(1) // key_heads).to(tl.int64), (tl.program_id(1) % key_heads).to(tl.int64)
    key = block * N + tl.arange(0, N)
    k_tile = _tile(k + row * k_row + key_head * k_head, key, tl.arange(0, D), k_stride, keys, d, FITS, False)
    v_tile = _tile(v + row * v_row + key_head * v_head, key, tl.arange(0, E), v_stride, keys, e, FITS, False)
    place = tl.minimum(row, map_rows - 1) * tl.cdiv(keys, TILE) + block * N // TILE
    first, middle, last = tl.load(begin + place), tl.load(partial + place), tl.load(begin + place + 1)
    to_key, to_value = tl.zeros([N, D], tl.float32), tl.zeros([N, E], tl.float32)
    for head in range(key_head * shared_by, (key_head + 1) * shared_by):
        own_q, own_above = q + row * q_row + head * q_head, above + (row * queries * heads + head) * e
        own_bias, line = bias + row * bias_row + head * bias_head, (row * heads + head) * queries
        to_key, to_value = _back_to_keys(
            to_key, to_value, own_q, k_tile, v_tile, own_bias, own_above, log_sum + line, difference + line, tiles,
            which, patterns, key, queries, keys, q_stride, heads * e, bias_query, first, middle,
            least, most, scale * LOG2_E, d, e, False, BAND, BIASED, FITS, PRECISION, TILE, WORD, M, D, E,
        )  # fmt: skip
        to_key, to_value = _back_to_keys(
            to_key, to_value, own_q, k_tile, v_tile, own_bias, own_above, log_sum + line, difference + line, tiles,
            which, patterns, key, queries, keys, q_stride, heads * e, bias_query, middle, last,
            least, most, scale * LOG2_E, d, e, True, BAND, BIASED, FITS, PRECISION, TILE, WORD, M, D, E,
        )  # fmt: skip
    inside = key[:, None] < keys
    column = tl.arange(0, D)
    places = dk + (row * keys + key[:, None]) * key_heads * d + key_head * d + column[None, :]
    tl.store(places, (to_key * scale).to(dk.dtype.element_ty), mask=inside & (column[None, :] < d))
    column = tl.arange(0, E)
    places = dv + (row * keys + key[:, None]) * key_heads * e + key_head * e + column[None, :]
    tl.store(places, to_value.to(dv.dtype.element_ty), mask=inside & (column[None, :] < e))
