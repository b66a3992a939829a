"""Attention by positive random features on a GPU: features live in a program's registers and are never written down.

A row is cut into chunks. `gather` makes each chunk's sums Σ φ(k) [v 1]ᵀ, `carry` gives each the sums of those before,
`read` reads them with φ(q) and forms the small table within the chunk. [choromanski2021 eq.7, appendix B.1]

No exponent overflows: a chunk's sums are made smaller by its largest feature, what a chunk reads by the largest up to
its end, and a query's features by its own largest. All of these cancel in a ratio of two sums. Exponents are of 2.

Sums lie in memory as [lines chunks m wide]: e columns of values, then columns of the denominator up to `wide`.

Shapes: C tokens of a chunk, D width of a key, E of a value, F features at once (all filled up to a power of two),
T chunks and W numbers of a step of `carry`, B blocks of features. A line is a head of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.attention.kernels.flash_programs import tile_of

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e30)  # the largest exponent where there is none
LEAST = tl.constexpr(1e-30)  # a denominator below this is of a query that sees nothing


@triton.jit
def rows_of(of, first, stride, rows, columns, FITS: tl.constexpr, R: tl.constexpr, W: tl.constexpr):
    """[R W] of a small matrix from row `first` on; what lies beyond its ends is 0."""
    row, column = first + tl.arange(0, R), tl.arange(0, W)
    places = of + row[:, None] * stride + column[None, :]
    if FITS:
        found = tl.load(places)
    else:
        found = tl.load(places, mask=(row < rows)[:, None] & (column < columns)[None, :], other=0.0)
    return found


@triton.jit
def write_stream(to, value, row, head, start, heads, length, width, FITS: tl.constexpr):
    """value [C W] to the tokens of a chunk where `to` is [b n h width]."""
    ROWS: tl.constexpr = value.shape[0]
    COLUMNS: tl.constexpr = value.shape[1]
    inner, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    to += ((row * length + start) * heads + head) * width
    places = to + inner[:, None] * (heads * width) + column[None, :]
    if FITS:
        tl.store(places, value.to(to.dtype.element_ty))
    else:
        inside = (start + inner < length)[:, None] & (column < width)[None, :]
        tl.store(places, value.to(to.dtype.element_ty), mask=inside)


@triton.jit
def exponents_of(x, w, first, features, d, TURNED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
                 D: tl.constexpr, F: tl.constexpr):  # fmt: skip
    """x [C D] times F directions, times log₂ e: [C F], or TURNED [F C]. Past the last direction -∞."""
    own = rows_of(w, first, d, features, d, FITS, F, D)  # [F D]
    if TURNED:
        found = tl.dot(own, tl.trans(x), input_precision=PRECISION) * LOG2_E
        if not FITS:
            found = tl.where((first + tl.arange(0, F) < features)[:, None], found, float("-inf"))
    else:
        found = tl.dot(x, tl.trans(own), input_precision=PRECISION) * LOG2_E
        if not FITS:
            found = tl.where((first + tl.arange(0, F) < features)[None, :], found, float("-inf"))
    return found


@triton.jit
def size_of(k, half):
    """What is taken off a key's exponents: |k|²/2, scaled. [C]"""
    k = k.to(tl.float32)
    return tl.sum(k * k, 1) * (half * LOG2_E)


@triton.jit
def real_of(real, token, length, PADDED: tl.constexpr):
    """Which tokens are there, and no padding. [C]"""
    seen = token < length
    if PADDED:
        seen &= tl.load(real + token, mask=seen, other=0) != 0
    return seen


@triton.jit
def beside_of(sums, first, features, e, wide, F: tl.constexpr, FITS: tl.constexpr):
    """The denominator's sums of F features. [F]"""
    feature = first + tl.arange(0, F)
    places = sums + feature * wide + e
    if FITS:
        found = tl.load(places)
    else:
        found = tl.load(places, mask=feature < features, other=0.0)
    return found.to(tl.float32)


@triton.jit
def write_sums(sums, first, of_values, beside, features, e, wide, F: tl.constexpr, E: tl.constexpr):
    """of_values [F E] and, in every column behind them, beside [F]."""
    feature, column, behind = first + tl.arange(0, F), tl.arange(0, E), e + tl.arange(0, 8)
    sums += feature[:, None] * wide
    inside = (feature < features)[:, None]
    tl.store(sums + column[None, :], of_values.to(sums.dtype.element_ty), mask=inside & (column < e)[None, :])
    beside = tl.broadcast_to(beside[:, None], [F, 8])
    tl.store(sums + behind[None, :], beside.to(sums.dtype.element_ty), mask=inside & (behind < wide)[None, :])


@triton.jit(do_not_specialize=["heads", "length", "chunks"])
def gather(
    k, v, w, real, sums, levels, k_row, k_head, k_token, v_row, v_head, v_token,
    heads, length, chunks, features, half, d, e, eighths,
    PADDED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Σ φ(k) [v 1]ᵀ of a chunk for F features, made smaller by the largest of them, which `levels` tells."""
    wide = eighths * 8  # so that whole rows are read and written in large pieces
    blocks = tl.cdiv(features, F)
    chunk, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    line = tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    start, inner = chunk * C, tl.arange(0, C)
    k_tile = tile_of(k + row * k_row + head * k_head, start, inner, tl.arange(0, D), k_token, length, d, FITS, False)
    v_tile = tile_of(v + row * v_row + head * v_head, start, inner, tl.arange(0, E), v_token, length, e, FITS, False)
    seen = real_of(real + row * length, start + inner, length, PADDED)
    exponents = exponents_of(k_tile, w, block * F, features, d, True, FITS, PRECISION, D, F)  # [F C]
    exponents = tl.where(seen[None, :], exponents - size_of(k_tile, half)[None, :], float("-inf"))
    level = tl.maximum(tl.max(tl.max(exponents, 1), 0), NOTHING)
    made = tl.exp2(exponents - level).to(v_tile.dtype)
    of_values = tl.dot(made, v_tile, input_precision=PRECISION)
    place = line * chunks + chunk
    write_sums(
        sums + place * features * wide, block * F, of_values, tl.sum(made.to(tl.float32), 1), features, e, wide, F, E
    )
    tl.store(levels + place * blocks + block, level)


@triton.jit(do_not_specialize=["chunks", "blocks"])
def carry(
    sums, levels, before, largest_before, after, largest, tops, chunks, blocks, span, elements, share,
    BACK: tl.constexpr, STARTED: tl.constexpr, KEPT: tl.constexpr, PRECISION: tl.constexpr,
    T: tl.constexpr, W: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """In place of each chunk's sums those of all chunks before it, begun with `before` if STARTED; `after` is the end.

    levels [lines chunks blocks] tell by what the sums of a block of `span` numbers were made smaller; what is written
    is made smaller by the largest up to the end of the chunk, which is written to tops [lines chunks]. If not KEPT the
    end alone is wanted, and tops are [lines]. `largest` of before and after are natural logarithms less `share`.

    BACK: from the last chunk to the first, of sums made larger by levels, which are tops; the end is as the first.
    """
    pieces = tl.cdiv(span, W)
    block, piece = tl.program_id(0) // pieces, tl.program_id(0) % pieces
    line = tl.program_id(1).to(tl.int64)
    number = piece * W + tl.arange(0, W)
    element = block * span + number
    inside = (number < span) & (element < elements)
    i = tl.arange(0, T)
    carried, top = tl.zeros([W], tl.float32), tl.full([1], NOTHING, tl.float32)
    if STARTED:
        carried = tl.load(before + line * elements + element, mask=inside, other=0.0)
        if BACK:
            top = -tl.load(levels + line * chunks + chunks - 1 + tl.arange(0, 1))
        else:
            top = (tl.load(largest_before + line + tl.arange(0, 1)) + share) * LOG2_E
    for step in range(0, chunks, T):
        there = step + i < chunks
        if BACK:
            chunk = chunks - 1 - step - i
            own = tl.where(there, -tl.load(levels + line * chunks + chunk, mask=there, other=0.0), NOTHING)
            highest = own
        else:
            chunk = step + i
            places = levels + (line * chunks + chunk) * blocks
            own = tl.load(places + block, mask=there, other=NOTHING)
            each = tl.arange(0, B)
            highest = tl.max(
                tl.load(places[:, None] + each[None, :], mask=there[:, None] & (each < blocks)[None, :], other=NOTHING),
                1,
            )
        whole = sums + (line * chunks + chunk)[:, None] * elements + element[None, :]
        tile = tl.load(whole, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float32)  # [T W]
        if KEPT:
            end = tl.maximum(tl.max(tl.where(i[None, :] <= i[:, None], highest[None, :], NOTHING), 1), top)
            reach = tl.where(i[None, :] < i[:, None], tl.exp2(own[None, :] - end[:, None]), 0.0)
            found = tl.dot(reach, tile, input_precision=PRECISION) + carried[None, :] * tl.exp2(top - end)[:, None]
            tl.store(whole, found.to(sums.dtype.element_ty), mask=there[:, None] & inside[None, :])
            if not BACK and tl.program_id(0) == 0:
                tl.store(tops + line * chunks + chunk, end, mask=there)
        higher = tl.maximum(top, tl.max(highest, 0))
        carried = carried * tl.exp2(top - higher) + tl.sum(tile * tl.exp2(own - higher)[:, None], 0)
        top = higher
    tl.store(after + line * elements + element, carried, mask=inside)
    if not BACK and tl.program_id(0) == 0:
        tl.store(largest + line + tl.arange(0, 1), top / LOG2_E - share)
        if not KEPT:
            tl.store(tops + line + tl.arange(0, 1), top)


@triton.jit(do_not_specialize=["heads", "length", "chunks"])
def read(
    q, k, v, w, real, sums, tops, o, level, inverse,
    q_row, q_head, q_token, k_row, k_head, k_token, v_row, v_head, v_token,
    heads, length, chunks, features, half, d, e, eighths,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """What a chunk of queries reads, o [b n h e]; the largest exponent and 1/denominator of each query [lines n].

    CAUSAL: sums [lines chunks m wide] of earlier chunks, and the tokens of its own. Else sums [lines m wide] of all.
    """
    wide = eighths * 8  # so that whole rows are read and written in large pieces
    chunk, line = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    start, inner = chunk * C, tl.arange(0, C)
    token = start + inner
    q_tile = tile_of(q + row * q_row + head * q_head, start, inner, tl.arange(0, D), q_token, length, d, FITS, False)
    top = tl.full([C], float("-inf"), tl.float32)
    for first in range(0, features, F):
        top = tl.maximum(top, tl.max(exponents_of(q_tile, w, first, features, d, False, FITS, PRECISION, D, F), 1))
    gathered, total = tl.zeros([C, E], tl.float32), tl.zeros([C], tl.float32)
    if CAUSAL:
        place = line * chunks + chunk
        k_tile = tile_of(
            k + row * k_row + head * k_head, start, inner, tl.arange(0, D), k_token, length, d, FITS, False
        )
        seen = real_of(real + row * length, token, length, PADDED)
        off = tl.where(seen, size_of(k_tile, half) + tl.load(tops + place), float("inf"))
        table = tl.zeros([C, C], tl.float32)
    else:
        place = line
    sums += place * features * wide
    for first in range(0, features, F):
        if CAUSAL:
            exponents = exponents_of(k_tile, w, first, features, d, False, FITS, PRECISION, D, F)
            keys = tl.exp2(exponents - off[:, None]).to(q_tile.dtype)  # [C F]
        exponents = exponents_of(q_tile, w, first, features, d, False, FITS, PRECISION, D, F)
        queries = tl.exp2(exponents - top[:, None]).to(q_tile.dtype)  # [C F]
        tile = rows_of(sums, first, wide, features, e, FITS, F, E)
        gathered = tl.dot(queries, tile.to(q_tile.dtype), gathered, input_precision=PRECISION)
        beside = beside_of(sums, first, features, e, wide, F, FITS)
        total += tl.sum(queries.to(tl.float32) * beside[None, :], 1)
        if CAUSAL:
            table = tl.dot(queries, tl.trans(keys), table, input_precision=PRECISION)
    if CAUSAL:
        v_tile = tile_of(
            v + row * v_row + head * v_head, start, inner, tl.arange(0, E), v_token, length, e, FITS, False
        )
        table = tl.where(inner[None, :] <= inner[:, None], table, 0.0).to(v_tile.dtype)
        gathered = tl.dot(table, v_tile, gathered, input_precision=PRECISION)
        total += tl.sum(table.to(tl.float32), 1)
    share = tl.where(total < LEAST, 0.0, 1.0 / total)
    tl.store(level + line * length + token, top, mask=token < length)
    tl.store(inverse + line * length + token, share, mask=token < length)
    write_stream(o, gathered * share[:, None], row, head, start, heads, length, e, FITS)
