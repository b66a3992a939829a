"""The way back of attention by positive random features on a GPU: features are made again, chunk by chunk.

With o = φ(q) S / φ(q) z, what comes from above reaches both sums as g = [do, -do·o] / φ(q) z, so that

    dφ(q) = g [S z]ᵀ,   R = Σ_later φ(q)ᵀ g,   dφ(k) = [v 1] Rᵀ,   dv = φ(k) R,

R being sums from the end as S are from the beginning; within a chunk small tables stand for both. An exponential is its
own derivative: dq = (dφ(q) ∘ φ(q)) w, and so for keys. Each program writes its own answers: the same input gives the
same gradient, bit for bit.

Shapes and sums as in `positive_programs.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.attention.kernels.flash_programs import tile_of
from qkv.parts.attention.kernels.positive_programs import (
    beside_of,
    exponents_of,
    real_of,
    rows_of,
    size_of,
    write_stream,
    write_sums,
)


@triton.jit(do_not_specialize=["heads", "length", "chunks"])
def pull(
    q, w, o, above, level, inverse, sums, difference, q_row, q_head, q_token,
    heads, length, chunks, features, d, e, eighths,
    FITS: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """φ(q)ᵀ g of a chunk for F features, and do·o over the denominator [lines n]. o and above are [b n h e]."""
    wide = eighths * 8  # so that whole rows are read and written in large pieces
    blocks = tl.cdiv(features, F)
    chunk, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    line = tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    start, inner = chunk * C, tl.arange(0, C)
    token, stream, columns = start + inner, row * length * heads * e + head * e, tl.arange(0, E)
    q_tile = tile_of(q + row * q_row + head * q_head, start, inner, tl.arange(0, D), q_token, length, d, FITS, False)
    pulled = tile_of(above + stream, start, inner, columns, heads * e, length, e, FITS, False).to(tl.float32)
    answer = tile_of(o + stream, start, inner, columns, heads * e, length, e, FITS, False).to(tl.float32)
    inside = token < length
    share = tl.load(inverse + line * length + token, mask=inside, other=0.0)
    less = tl.sum(pulled * answer, 1) * share
    if block == 0:
        tl.store(difference + line * length + token, less, mask=inside)
    top = tl.load(level + line * length + token, mask=inside, other=float("inf"))
    exponents = exponents_of(q_tile, w, block * F, features, d, True, FITS, PRECISION, D, F) - top[None, :]
    made = tl.exp2(exponents).to(q_tile.dtype)  # [F C]
    of_values = tl.dot(made, (pulled * share[:, None]).to(q_tile.dtype), input_precision=PRECISION)
    beside = -tl.sum(made.to(tl.float32) * less[None, :], 1)
    sums += (line * chunks + chunk) * features * wide
    write_sums(sums, block * F, of_values, beside, features, e, wide, F, E)


@triton.jit(do_not_specialize=["heads", "length", "chunks"])
def back_to_queries(
    q, k, v, w, real, sums, tops, above, level, inverse, difference, dq,
    q_row, q_head, q_token, k_row, k_head, k_token, v_row, v_head, v_token,
    heads, length, chunks, features, half, d, e, eighths,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """dq [b n h d] of a chunk."""
    wide = eighths * 8  # so that whole rows are read and written in large pieces
    chunk, line = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    start, inner, column = chunk * C, tl.arange(0, C), tl.arange(0, D)
    token = start + inner
    inside = token < length
    q_tile = tile_of(q + row * q_row + head * q_head, start, inner, column, q_token, length, d, FITS, False)
    top = tl.load(level + line * length + token, mask=inside, other=float("inf"))
    share = tl.load(inverse + line * length + token, mask=inside, other=0.0)
    less = tl.load(difference + line * length + token, mask=inside, other=0.0)
    above += row * length * heads * e + head * e
    pulled = tile_of(above, start, inner, tl.arange(0, E), heads * e, length, e, FITS, False)
    pulled = (pulled.to(tl.float32) * share[:, None]).to(q_tile.dtype)  # [C E]
    if CAUSAL:
        place = line * chunks + chunk
        k_tile = tile_of(k + row * k_row + head * k_head, start, inner, column, k_token, length, d, FITS, False)
        v_tile = tile_of(
            v + row * v_row + head * v_head, start, inner, tl.arange(0, E), v_token, length, e, FITS, False
        )
        seen = real_of(real + row * length, token, length, PADDED)
        off = tl.where(seen, size_of(k_tile, half) + tl.load(tops + place), float("inf"))
        table = tl.dot(pulled, tl.trans(v_tile), input_precision=PRECISION) - less[:, None]
        table = tl.where(inner[None, :] <= inner[:, None], table, 0.0).to(q_tile.dtype)  # [queries keys]
    else:
        place = line
    sums += place * features * wide
    gathered = tl.zeros([C, D], tl.float32)
    for first in range(0, features, F):
        tile = rows_of(sums, first, wide, features, e, FITS, F, E)  # [F E]
        beside = beside_of(sums, first, features, e, wide, F, FITS)
        slope = tl.dot(pulled, tl.trans(tile.to(q_tile.dtype)), input_precision=PRECISION)
        slope -= less[:, None] * beside[None, :]  # [C F]
        if CAUSAL:
            exponents = exponents_of(k_tile, w, first, features, d, False, FITS, PRECISION, D, F)
            keys = tl.exp2(exponents - off[:, None]).to(q_tile.dtype)  # [C F]
            slope = tl.dot(table, keys, slope, input_precision=PRECISION)
        exponents = exponents_of(q_tile, w, first, features, d, False, FITS, PRECISION, D, F)
        slope *= tl.exp2(exponents - top[:, None])
        own = rows_of(w, first, d, features, d, FITS, F, D)  # [F D]
        gathered = tl.dot(slope.to(q_tile.dtype), own, gathered, input_precision=PRECISION)
    write_stream(dq, gathered, row, head, start, heads, length, d, FITS)


@triton.jit(do_not_specialize=["heads", "length", "chunks"])
def back_to_keys(
    q, k, v, w, real, sums, tops, above, level, inverse, difference, dk, dv,
    q_row, q_head, q_token, k_row, k_head, k_token, v_row, v_head, v_token,
    heads, length, chunks, features, half, d, e, eighths,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """dk [b n h d] and dv [b n h e] of a chunk; sums are R."""
    wide = eighths * 8  # so that whole rows are read and written in large pieces
    chunk, line = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    start, inner, column, columns = chunk * C, tl.arange(0, C), tl.arange(0, D), tl.arange(0, E)
    token = start + inner
    inside = token < length
    k_tile = tile_of(k + row * k_row + head * k_head, start, inner, column, k_token, length, d, FITS, False)
    v_tile = tile_of(v + row * v_row + head * v_head, start, inner, columns, v_token, length, e, FITS, False)
    place = line
    if CAUSAL:
        place = line * chunks + chunk
    seen = real_of(real + row * length, token, length, PADDED)
    off = tl.where(seen, size_of(k_tile, half) + tl.load(tops + place), float("inf"))
    sums += place * features * wide
    if CAUSAL:
        q_tile = tile_of(q + row * q_row + head * q_head, start, inner, column, q_token, length, d, FITS, False)
        top = tl.load(level + line * length + token, mask=inside, other=float("inf"))
        share = tl.load(inverse + line * length + token, mask=inside, other=0.0)
        less = tl.load(difference + line * length + token, mask=inside, other=0.0)
        above += row * length * heads * e + head * e
        pulled = tile_of(above, start, inner, columns, heads * e, length, e, FITS, False)
        pulled = (pulled.to(tl.float32) * share[:, None]).to(k_tile.dtype)  # [C E]
        table = tl.zeros([C, C], tl.float32)
    # Two passes over the features, one for values and one for keys: together they would take more registers than are.
    to_values = tl.zeros([C, E], tl.float32)
    for first in range(0, features, F):
        exponents = exponents_of(k_tile, w, first, features, d, False, FITS, PRECISION, D, F)
        keys = tl.exp2(exponents - off[:, None]).to(k_tile.dtype)  # [C F]
        tile = rows_of(sums, first, wide, features, e, FITS, F, E).to(k_tile.dtype)
        to_values = tl.dot(keys, tile, to_values, input_precision=PRECISION)
        if CAUSAL:
            exponents = exponents_of(q_tile, w, first, features, d, False, FITS, PRECISION, D, F)
            queries = tl.exp2(exponents - top[:, None]).to(k_tile.dtype)  # [C F]
            table = tl.dot(keys, tl.trans(queries), table, input_precision=PRECISION)  # [keys queries]
    if CAUSAL:
        table = tl.where(inner[:, None] <= inner[None, :], table, 0.0).to(k_tile.dtype)
        to_values = tl.dot(table, pulled, to_values, input_precision=PRECISION)
        slopes = tl.dot(v_tile, tl.trans(pulled), input_precision=PRECISION) - less[None, :]
        slopes = tl.where(inner[:, None] <= inner[None, :], slopes, 0.0).to(k_tile.dtype)  # [keys queries]
    write_stream(dv, to_values, row, head, start, heads, length, e, FITS)
    to_keys, total = tl.zeros([C, D], tl.float32), tl.zeros([C], tl.float32)
    for first in range(0, features, F):
        tile = rows_of(sums, first, wide, features, e, FITS, F, E).to(k_tile.dtype)  # [F E]
        slope = tl.dot(v_tile, tl.trans(tile), input_precision=PRECISION)
        slope += beside_of(sums, first, features, e, wide, F, FITS)[None, :]  # [C F]
        if CAUSAL:
            exponents = exponents_of(q_tile, w, first, features, d, False, FITS, PRECISION, D, F)
            queries = tl.exp2(exponents - top[:, None]).to(k_tile.dtype)  # [C F]
            slope = tl.dot(slopes, queries, slope, input_precision=PRECISION)
        exponents = exponents_of(k_tile, w, first, features, d, False, FITS, PRECISION, D, F)
        slope *= tl.exp2(exponents - off[:, None])
        total += tl.sum(slope, 1)
        own = rows_of(w, first, d, features, d, FITS, F, D)
        to_keys = tl.dot(slope.to(k_tile.dtype), own, to_keys, input_precision=PRECISION)
    k_tile = tile_of(k + row * k_row + head * k_head, start, inner, column, k_token, length, d, FITS, False)
    to_keys -= k_tile.to(tl.float32) * (total * (2.0 * half))[:, None]
    write_stream(dk, to_keys, row, head, start, heads, length, d, FITS)
