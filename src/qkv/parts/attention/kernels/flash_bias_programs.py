"""FlashAttention's way back to a bias that rows or heads share, where what is seen is a band.

One program for each tile of the bias: it goes through all rows and heads that share the tile, makes their weights
again, and sums what each asks for where it is. So the same input gives the same gradient, bit for bit, and memory is
written once, for two products more than gradients of queries and keys take.

Shapes: M queries and N keys of a tile, D width of a key, E of a value (both filled up to a power of two).
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.attention.kernels.flash_dropout_programs import lot_of, stays
from qkv.parts.attention.kernels.flash_programs import log2_e, seen_of, tile_of


@triton.jit
def backward_bias(
    q, k, v, bias, above, log_sum, difference, seed, dbias, query_runs, key_runs,
    q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    bias_row, bias_head, bias_query, heads, shared_by, queries, keys, map_rows, least, most, scale, d, e,
    dropped, grown, rows_together, heads_together,
    RUNS: tl.constexpr, DROPS: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, WORD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """dB = Σ dS over `rows_together` rows, and over `heads_together` heads of each: all that there are, or one."""
    across = tl.cdiv(keys, N)
    start, corner = tl.program_id(0) // across * M, tl.program_id(0) % across * N
    inner, inner_key = tl.arange(0, M), tl.arange(0, N)
    query, key = start + inner, corner + inner_key
    inside = query < queries
    parts = heads // heads_together
    first_row = (tl.program_id(1) // parts * rows_together).to(tl.int64)
    first_head = (tl.program_id(1) % parts * heads_together).to(tl.int64)
    bias += first_row * bias_row + first_head * bias_head
    bounded = tl.minimum(query, queries - 1)
    places = bias + bounded[:, None] * bias_query + key[None, :]
    added = tl.load(places, mask=key[None, :] < keys, other=0.0).to(tl.float32) * log2_e()
    gradient = tl.zeros([M, N], tl.float32)
    scale = scale * log2_e()
    unseen = (start - (corner + N - 1) > most) | (start + M - 1 - corner < least)
    together = tl.where(unseen, 0, rows_together * heads_together)
    for number in range(together):
        row, head = first_row + number // heads_together, first_head + number % heads_together
        own_q, own_above = q + row * q_row + head * q_head, above + (row * queries * heads + head) * e
        own_k, own_v = k + row * k_row + head // shared_by * k_head, v + row * v_row + head // shared_by * v_head
        q_tile = tile_of(own_q, start, inner, tl.arange(0, D), q_stride, queries, d, FITS, False)  # [M D]
        do = tile_of(own_above, start, inner, tl.arange(0, E), heads * e, queries, e, FITS, False)  # [M E]
        kt = tile_of(own_k, corner, inner_key, tl.arange(0, D), k_stride, keys, d, FITS, True)  # [D N]
        vt = tile_of(own_v, corner, inner_key, tl.arange(0, E), v_stride, keys, e, FITS, True)  # [E N]
        line = (row * heads + head) * queries
        sums = tl.load(log_sum + line + query, mask=inside, other=float("inf")) * log2_e()
        differences = tl.load(difference + line + query, mask=inside, other=0.0)
        s = tl.dot(q_tile, kt, input_precision=PRECISION)
        dp = tl.dot(do, vt, input_precision=PRECISION)
        p = tl.exp2(s * scale + added - sums[:, None])
        if DROPS:
            lot, other_lot = lot_of(seed, row * heads + head)
            dp = tl.where(stays(lot, other_lot, query, key, keys, dropped, False), dp * grown, 0.0)
        run, key_run = inner, inner_key
        if RUNS:
            map_row = tl.minimum(row, map_rows - 1)
            run = tl.load(query_runs + map_row * queries + query, mask=inside, other=0)
            key_run = tl.load(key_runs + map_row * keys + key, mask=key < keys, other=0)
        seen = seen_of(q, q, 0, query, key, keys, least, most, run, key_run, True, RUNS, False, TILE, WORD, N)
        gradient += tl.where(seen, p * (dp - differences[:, None]), 0.0)
    places = dbias + (tl.program_id(1).to(tl.int64) * queries + query[:, None]) * keys + key[None, :]
    tl.store(places, gradient, mask=inside[:, None] & (key[None, :] < keys))
