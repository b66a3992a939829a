"""Attention of short rows on a GPU: all keys of a row lie in one program, so a softmax is made at once. [dao2022 §3.1]

A program for rows reads the keys and values of one head once and keeps them for all queries. They come in up to three
pieces, each a power of two as Triton wants it, so that 197 keys are 128 + 64 + 16 and not 256. A program for documents
in line takes queries as they stand, of several documents where those are short, and all keys that any of them sees.
Slots past an end read the last one, whose number nobody uses: that costs less than a look at every address.
Scores are kept times log₂e, so that the exponential is the hardware's own, 2^x. The scale is above 0.

Shapes: M queries of a step, N keys of a piece or step, D width of a key, E of a value (both powers of two).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from qkv.parts.attention.kernels.flash_programs import log2_e


@triton.jit
def tokens_of(of, slot, stride, width, WIDTH: tl.constexpr, FILLED: tl.constexpr):
    """[slots WIDTH] of a matrix, `stride` between its rows; columns past its width are 0."""
    column = tl.arange(0, WIDTH)
    places = of + slot[:, None] * stride + column[None, :]
    if FILLED:
        found = tl.load(places)
    else:
        found = tl.load(places, mask=column[None, :] < width, other=0.0)
    return found


@triton.jit
def scores_of(
    q, k, documents, query, key, keys, CAUSAL: tl.constexpr, PADDED: tl.constexpr, ENDS: tl.constexpr
):  # fmt: skip
    """[M N]. Numbers of documents are read again for each tile: kept, they would take registers from the scores."""
    s = tl.dot(q, tl.trans(k))
    if PADDED:
        shown = tl.load(documents + key, mask=key < keys, other=0) > 0
        s = tl.where(shown[None, :], s, float("-inf"))
    elif ENDS:
        s = tl.where(key[None, :] < keys, s, float("-inf"))
    if CAUSAL:
        s = tl.where(key[None, :] <= query[:, None], s, float("-inf"))
    return s


# Rows come in many lengths, and few of them are worth a variant of their own.
@triton.jit(do_not_specialize=["documents_row", "queries", "keys"])
def attend_rows(
    q, k, v, documents, o, log_sum,
    q_row, q_head, q_slot, k_row, k_head, k_slot, v_row, v_head, v_slot, documents_row,
    heads, shared_by, queries, keys, scale, d, e,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, FITS: tl.constexpr, FILLED: tl.constexpr, KEPT: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One head of one row, or a share of its queries. Kept for the way back: log₂ of sums, +∞ where all is hidden."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
    q += row * q_row + head * q_head
    k += row * k_row + head // shared_by * k_head
    v += row * v_row + head // shared_by * v_head
    o += (row * queries * heads + head) * e
    documents += row * documents_row
    scale = scale * log2_e()

    end = keys - 1
    key_1 = tl.arange(0, FIRST)
    k_1 = tokens_of(k, tl.minimum(key_1, end), k_slot, d, D, FILLED)  # [N D]
    v_1 = tokens_of(v, tl.minimum(key_1, end), v_slot, e, E, FILLED)  # [N E]
    if SECOND > 0:
        key_2 = FIRST + tl.arange(0, SECOND)
        k_2 = tokens_of(k, tl.minimum(key_2, end), k_slot, d, D, FILLED)
        v_2 = tokens_of(v, tl.minimum(key_2, end), v_slot, e, E, FILLED)
    if THIRD > 0:
        key_3 = FIRST + SECOND + tl.arange(0, THIRD)
        k_3 = tokens_of(k, tl.minimum(key_3, end), k_slot, d, D, FILLED)
        v_3 = tokens_of(v, tl.minimum(key_3, end), v_slot, e, E, FILLED)

    for start in range(tl.program_id(1) * M, queries, tl.num_programs(1) * M):
        query = start + tl.arange(0, M)
        q_tile = tokens_of(q, tl.minimum(query, queries - 1), q_slot, d, D, FILLED)  # [M D]
        s_1 = scores_of(q_tile, k_1, documents, query, key_1, keys, CAUSAL, PADDED, SECOND == 0 and not FITS)
        largest = tl.max(s_1, 1)
        if SECOND > 0:
            s_2 = scores_of(q_tile, k_2, documents, query, key_2, keys, CAUSAL, PADDED, THIRD == 0 and not FITS)
            largest = tl.maximum(largest, tl.max(s_2, 1))
        if THIRD > 0:
            s_3 = scores_of(q_tile, k_3, documents, query, key_3, keys, CAUSAL, PADDED, not FITS)
            largest = tl.maximum(largest, tl.max(s_3, 1))
        if PADDED:  # nothing seen at all: 2^(-∞ - 0) is 0
            largest = tl.where(largest == float("-inf"), 0.0, largest)
        level = (largest * scale)[:, None]
        p_1 = tl.exp2(s_1 * scale - level)
        total = tl.sum(p_1, 1)
        gathered = tl.dot(p_1.to(v_1.dtype), v_1)  # [M E]
        if SECOND > 0:
            p_2 = tl.exp2(s_2 * scale - level)
            total += tl.sum(p_2, 1)
            gathered = tl.dot(p_2.to(v_2.dtype), v_2, gathered)
        if THIRD > 0:
            p_3 = tl.exp2(s_3 * scale - level)
            total += tl.sum(p_3, 1)
            gathered = tl.dot(p_3.to(v_3.dtype), v_3, gathered)
        if KEPT:
            sums = tl.where(total == 0.0, float("inf"), largest * scale + tl.log2(total))
            tl.store(log_sum + tl.program_id(0).to(tl.int64) * queries + query, sums, mask=query < queries)
        if PADDED:
            total = tl.where(total == 0.0, 1.0, total)
        store_tokens(o, query, queries, gathered * (1.0 / total)[:, None], heads, e, E)


@triton.jit(do_not_specialize=["slots"])
def attend_in_line(
    q, k, v, documents, bounds, o, q_head, q_slot, k_head, k_slot, v_head, v_slot, heads, shared_by, slots, scale, d, e,
    CAUSAL: tl.constexpr, FILLED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """M neighbouring queries of one head. Document i, counted from 1, stands from bounds[i - 1] to before bounds[i]."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    start, head = tl.program_id(0) // heads * M, (tl.program_id(0) % heads).to(tl.int64)
    inner = tl.minimum(tl.arange(0, M), slots - 1 - start)
    document = tl.load(documents + start + inner)
    begin, end = tl.load(bounds + document - 1), tl.load(bounds + document)  # of the keys that each query sees
    first, last = tl.min(begin, 0), tl.max(end, 0)
    if CAUSAL:
        end = start + inner + 1
    q_tile = tokens_of(q + head * q_head + start.to(tl.int64) * q_slot, inner, q_slot, d, D, FILLED)  # [M D]
    k += head // shared_by * k_head + first.to(tl.int64) * k_slot
    v += head // shared_by * v_head + first.to(tl.int64) * v_slot
    begin, end, last = begin - first, end - first, last - first  # counted from the first of these keys
    scale = scale * log2_e()
    gathered = tl.zeros([M, E], tl.float32)
    total = tl.zeros([M], tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    for corner in range(0, last, N):
        key = corner + tl.arange(0, N)
        slot = tl.minimum(key, last - 1)
        ks = tokens_of(k, slot, k_slot, d, D, FILLED)  # [N D]
        s = tl.dot(q_tile, tl.trans(ks))  # [M N]
        s = tl.where((key[None, :] >= begin[:, None]) & (key[None, :] < end[:, None]), s, float("-inf"))
        higher = tl.maximum(largest, tl.max(s, 1) * scale)
        level = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet
        p = tl.exp2(s * scale - level[:, None])
        shrink = tl.exp2(largest - level)
        total = total * shrink + tl.sum(p, 1)
        vs = tokens_of(v, slot, v_slot, e, E, FILLED)  # [N E]
        gathered = tl.dot(p.to(vs.dtype), vs, gathered * shrink[:, None])
        largest = higher
    o += (start.to(tl.int64) * heads + head) * e
    store_tokens(o, tl.arange(0, M), slots - start, gathered * (1.0 / total)[:, None], heads, e, E)


@triton.jit
def store_tokens(o, slot, slots, found, heads, e, E: tl.constexpr):
    """[M E] into memory that lies as a stream does: all heads of a token side by side."""
    column = tl.arange(0, E)
    inside = (slot[:, None] < slots) & (column[None, :] < e)
    tl.store(o + slot[:, None] * (heads * e) + column[None, :], found.to(o.dtype.element_ty), mask=inside)
