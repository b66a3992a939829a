"""Hashed attention's programs for a GPU: each reads its tokens where they stand, by the order that sorting gave.

Nothing is copied into sorted order: a program loads the numbers of its chunk's tokens and then the tokens themselves,
and writes its answers back to where the tokens stand. The softmax is gathered as in `flash_programs.py`.

Shapes: C tokens of a chunk, D width of a key, E of a value (both filled up to a power of two).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
SELF = tl.constexpr(-1e5)


@triton.jit
def _rows(of, index, stride, length, width, W: tl.constexpr):
    """[C W]: the tokens that `index` names; 0 for those past the row's end."""
    column = tl.arange(0, W)
    inside = (index[:, None] < length) & (column[None, :] < width)
    return tl.load(of + index[:, None].to(tl.int64) * stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def _scores(s, mine, theirs, real, length, CAUSAL: tl.constexpr, PADDED: tl.constexpr):
    """Scores times log₂e with what is hidden at -∞; mine and theirs broadcast to the shape of s."""
    s = tl.where(mine == theirs, SELF * LOG2_E, s)
    if CAUSAL:
        s = tl.where(theirs > mine, float("-inf"), s)
    if PADDED:
        s = tl.where(tl.load(real + theirs, mask=theirs < length, other=0) != 0, s, float("-inf"))
    return tl.where(theirs < length, s, float("-inf"))


@triton.jit
def forward(
    q, k, v, real, order, o, log_sum, q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    heads, rounds, length, slots, before, after, scale, d, e,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    chunk, chunks = tl.program_id(0), tl.num_programs(0)
    line = tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    order += line * rounds * slots
    mine = tl.load(order + chunk * C + tl.arange(0, C))
    q_tile = _rows(q + row * q_row + head * q_head, mine, q_stride, length, d, D)
    k += row * k_row + head * k_head
    v += row * v_row + head * v_head
    real += row * length
    gathered, total = tl.zeros([C, E], tl.float32), tl.zeros([C], tl.float32)
    largest = tl.full([C], float("-inf"), tl.float32)
    for back in range(-after, before + 1):
        other = (chunk - back + chunks) % chunks  # the chunk before the first is the last
        theirs = tl.load(order + other * C + tl.arange(0, C))
        k_tile = _rows(k, theirs, k_stride, length, d, D)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * (scale * LOG2_E)
        s = _scores(s, mine[:, None], theirs[None, :], real, length, CAUSAL, PADDED)
        higher = tl.maximum(largest, tl.max(s, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        p, shrink = tl.exp2(s - level[:, None]), tl.exp2(largest - level)
        total = total * shrink + tl.sum(p, 1)
        v_tile = _rows(v, theirs, v_stride, length, e, E)
        gathered = tl.dot(p.to(v_tile.dtype), v_tile, gathered * shrink[:, None], input_precision=PRECISION)
        largest = higher
    nothing = total == 0.0
    gathered = gathered / tl.where(nothing, 1.0, total)[:, None]
    logarithm = tl.where(nothing, float("-inf"), (largest + tl.log2(tl.where(nothing, 1.0, total))) / LOG2_E)
    place = (line * rounds + chunk * C // slots) * length + mine
    tl.store(log_sum + place, logarithm, mask=mine < length)
    column = tl.arange(0, E)
    inside = (mine[:, None] < length) & (column[None, :] < e)
    tl.store(o + place[:, None] * e + column[None, :], gathered.to(o.dtype.element_ty), mask=inside)


@triton.jit
def backward(
    q, k, v, real, order, above, log_sum, difference, dq, dk, dv,
    q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    heads, rounds, length, slots, before, after, scale, d, e,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Of one chunk, the gradients of its queries (by what they read) and of its keys and values (by who reads them).

    `difference` is D minus the gradient of log_sum, for both enter dS = P ∘ (dP - D) alike.
    """
    chunk, chunks = tl.program_id(0), tl.num_programs(0)
    line = tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    order += line * rounds * slots
    own = tl.load(order + chunk * C + tl.arange(0, C))
    q += row * q_row + head * q_head
    k += row * k_row + head * k_head
    v += row * v_row + head * v_head
    real += row * length
    start = line * rounds * length
    place = start + chunk * C // slots * length + own
    inside = own < length
    q_tile, k_tile, v_tile = (
        _rows(q, own, q_stride, length, d, D),
        _rows(k, own, k_stride, length, d, D),
        _rows(v, own, v_stride, length, e, E),
    )
    above_base = above + (start + chunk * C // slots * length) * e
    above_tile = _rows(above_base, own, e, length, e, E)
    sums = tl.load(log_sum + place, mask=inside, other=float("inf"))
    sums = tl.where(sums == float("-inf"), float("inf"), sums) * LOG2_E  # a query that saw nothing: P is 0
    differences = tl.load(difference + place, mask=inside, other=0.0)
    to_query = tl.zeros([C, D], tl.float32)
    to_key, to_value = tl.zeros([C, D], tl.float32), tl.zeros([C, E], tl.float32)
    for back in range(-after, before + 1):
        other = (chunk - back + chunks) % chunks  # a chunk that this one's queries read
        theirs = tl.load(order + other * C + tl.arange(0, C))
        their_k, their_v = _rows(k, theirs, k_stride, length, d, D), _rows(v, theirs, v_stride, length, e, E)
        s = tl.dot(q_tile, tl.trans(their_k), input_precision=PRECISION) * (scale * LOG2_E)
        p = tl.exp2(_scores(s, own[:, None], theirs[None, :], real, length, CAUSAL, PADDED) - sums[:, None])
        dp = tl.dot(above_tile, tl.trans(their_v), input_precision=PRECISION)
        ds = tl.where(own[:, None] == theirs[None, :], 0.0, p * (dp - differences[:, None]))  # that score is a constant
        to_query = tl.dot(ds.to(their_k.dtype), their_k, to_query, input_precision=PRECISION)

        reader = (chunk + back + chunks) % chunks  # a chunk whose queries read this one
        theirs = tl.load(order + reader * C + tl.arange(0, C))
        their_start = start + reader * C // slots * length
        their_q = _rows(q, theirs, q_stride, length, d, D)
        their_above = _rows(above + their_start * e, theirs, e, length, e, E)
        there = theirs < length
        their_sums = tl.load(log_sum + their_start + theirs, mask=there, other=float("inf"))
        their_sums = tl.where(their_sums == float("-inf"), float("inf"), their_sums) * LOG2_E
        their_difference = tl.load(difference + their_start + theirs, mask=there, other=0.0)
        s = tl.dot(k_tile, tl.trans(their_q), input_precision=PRECISION) * (scale * LOG2_E)  # [keys queries]
        p = tl.exp2(_scores(s, theirs[None, :], own[:, None], real, length, CAUSAL, PADDED) - their_sums[None, :])
        to_value = tl.dot(p.to(their_above.dtype), their_above, to_value, input_precision=PRECISION)
        dp = tl.dot(v_tile, tl.trans(their_above), input_precision=PRECISION)
        ds = tl.where(own[:, None] == theirs[None, :], 0.0, p * (dp - their_difference[None, :]))
        to_key = tl.dot(ds.to(their_q.dtype), their_q, to_key, input_precision=PRECISION)
    column = tl.arange(0, D)
    seen = inside[:, None] & (column[None, :] < d)
    tl.store(dq + place[:, None] * d + column[None, :], to_query * scale, mask=seen)
    tl.store(dk + place[:, None] * d + column[None, :], to_key * scale, mask=seen)
    column = tl.arange(0, E)
    tl.store(dv + place[:, None] * e + column[None, :], to_value, mask=inside[:, None] & (column[None, :] < e))
