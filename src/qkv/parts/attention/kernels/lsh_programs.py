"""Hashed attention's programs for a GPU: each reads its tokens where they stand, by the order that sorting gave.

Nothing is copied into sorted order: a program loads the numbers of its chunk's tokens and then the tokens themselves,
and writes its answers back to where the tokens stand. The softmax is gathered as in `flash_programs.py`.

All rounds together are one softmax over all that they read [kitaev2020 eq.6]: with the logarithm L of its sum, a key of
any round weighs 2^(s - L). So the way back needs neither the rounds' answers nor their sums, but L alone.

Shapes: C tokens of a chunk, D width of a key, E of a value (both filled up to a power of two).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
SELF = tl.constexpr(-1e5 * 1.4426950408889634)
ALONE = tl.constexpr(2.0**20)  # above any score
NEARLY_NOTHING = tl.constexpr(1e-6)  # as in `lsh.py`


@triton.jit
def _rows(of, index, stride, length, width, W: tl.constexpr, FITS: tl.constexpr):
    """[C W]: the tokens that `index` names; 0 for those past the row's end."""
    column = tl.arange(0, W)
    places = of + index[:, None].to(tl.int64) * stride + column[None, :]
    if FITS:
        found = tl.load(places)
    else:
        found = tl.load(places, mask=(index[:, None] < length) & (column[None, :] < width), other=0.0)
    return found


@triton.jit
def _unit(tile, d):
    """(how much longer than one each token is, inverted [C]; the tokens made unit vectors [C D], in float32)."""
    wide = tile.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, 1) + NEARLY_NOTHING * d)
    return inverse, wide * inverse[:, None]


@triton.jit
def _kept(largest, total):
    """L as it is kept. Near SELF float32 is too coarse: a query that read but itself, n times, keeps ALONE + n."""
    nothing = total == 0.0
    times = tl.floor(total * tl.exp2(largest - SELF) + 0.5)
    logarithm = tl.where(largest < SELF / 2, ALONE + times, largest + tl.log2(tl.where(nothing, 1.0, total)))
    return tl.where(nothing, float("inf"), logarithm)


@triton.jit(do_not_specialize=["rounds"])
def forward(
    q, k, v, real, order, o, log_sum, q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    heads, rounds, length, slots, scale, d, e,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, CAUSAL: tl.constexpr, PADDED: tl.constexpr, UNIT: tl.constexpr,
    ONCE: tl.constexpr, FITS: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """What one chunk of one round reads, o [b h r n e] and log₂ of its sum [b h r n]; read ONCE, o is [b n h e].

    UNIT: k are the queries, which are made unit vectors here.
    """
    chunk, chunks = tl.program_id(0), tl.num_programs(0)
    line = tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    order += line * rounds * slots
    mine = tl.load(order + chunk * C + tl.arange(0, C))
    q_tile = _rows(q + row * q_row + head * q_head, mine, q_stride, length, d, D, FITS)
    k += row * k_row + head * k_head
    v += row * v_row + head * v_head
    real += row * length
    gathered, total = tl.zeros([C, E], tl.float32), tl.zeros([C], tl.float32)
    largest = tl.full([C], float("-inf"), tl.float32)
    for back in tl.static_range(-AFTER, BEFORE + 1):
        other = (chunk - back + chunks) % chunks  # the chunk before the first is the last
        theirs = tl.load(order + other * C + tl.arange(0, C))
        if UNIT and back == 0:
            k_tile = q_tile
        else:
            k_tile = _rows(k, theirs, k_stride, length, d, D, FITS)
        if UNIT:
            k_tile = _unit(k_tile, d)[1].to(q_tile.dtype)
        v_tile = _rows(v, theirs, v_stride, length, e, E, FITS)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * (scale * LOG2_E)
        s = tl.where(mine[:, None] == theirs[None, :], SELF, s)
        if CAUSAL:
            s = tl.where(theirs[None, :] > mine[:, None], float("-inf"), s)
        if PADDED:
            seen = tl.load(real + theirs, mask=theirs < length, other=0) != 0
            s = tl.where(seen[None, :], s, float("-inf"))
        elif not FITS:
            s = tl.where((theirs < length)[None, :], s, float("-inf"))
        higher = tl.maximum(largest, tl.max(s, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        p, shrink = tl.exp2(s - level[:, None]), tl.exp2(largest - level)
        total = total * shrink + tl.sum(p, 1)
        gathered = tl.dot(p.to(v_tile.dtype), v_tile, gathered * shrink[:, None], input_precision=PRECISION)
        largest = higher
    nothing = total == 0.0
    gathered = gathered / tl.where(nothing, 1.0, total)[:, None]
    place = (line * rounds + chunk * C // slots) * length + mine
    if ONCE:
        logarithm, answer = _kept(largest, total), (row * length + mine) * heads + head
    else:
        logarithm, answer = largest + tl.log2(total), place  # -∞ where nothing is seen
    column = tl.arange(0, E)
    places = o + answer[:, None] * e + column[None, :]
    if FITS:
        tl.store(log_sum + place, logarithm)
        tl.store(places, gathered.to(o.dtype.element_ty))
    else:
        inside = mine < length
        tl.store(log_sum + place, logarithm, mask=inside)
        tl.store(places, gathered.to(o.dtype.element_ty), mask=inside[:, None] & (column[None, :] < e))


@triton.jit(do_not_specialize=["rounds"])
def combined(each, log_sums, o, log_sum, heads, rounds, length, e, M: tl.constexpr, E: tl.constexpr):
    """Every round by its share of the sum: [b h r n e] and [b h r n] become o [b n h e] and L [b h n]."""
    line = tl.program_id(1).to(tl.int64)
    token, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, E)
    inside = token < length
    wide = inside[:, None] & (column[None, :] < e)
    gathered, total = tl.zeros([M, E], tl.float32), tl.zeros([M], tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    for round in range(rounds):
        place = (line * rounds + round) * length + token
        its = tl.load(log_sums + place, mask=inside, other=float("-inf"))
        answer = tl.load(each + place[:, None] * e + column[None, :], mask=wide, other=0.0).to(tl.float32)
        higher = tl.maximum(largest, its)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        share, shrink = tl.exp2(its - level), tl.exp2(largest - level)
        gathered = gathered * shrink[:, None] + answer * share[:, None]
        total = total * shrink + share
        largest = higher
    gathered = gathered / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(log_sum + line * length + token, _kept(largest, total), mask=inside)
    place = (line // heads * length + token) * heads + line % heads
    tl.store(o + place[:, None] * e + column[None, :], gathered.to(o.dtype.element_ty), mask=wide)


@triton.jit
def _weights(s, mine, theirs, sums, real, length, CAUSAL: tl.constexpr, PADDED: tl.constexpr, FITS: tl.constexpr):
    """What each query reads of each key, of scores times log₂e; all arguments broadcast to the shape of s."""
    p = tl.exp2(s - sums)
    p = tl.where(mine == theirs, tl.where(sums >= ALONE, 1.0 / (sums - ALONE), 0.0), p)
    if CAUSAL:
        p = tl.where(theirs > mine, 0.0, p)
    if PADDED:
        p = tl.where(tl.load(real + theirs, mask=theirs < length, other=0) != 0, p, 0.0)
    elif not FITS:
        p = tl.where(theirs < length, p, 0.0)
    return p


@triton.jit
def _to_scores(p, dp, mine, theirs, difference):
    return tl.where(mine == theirs, 0.0, p * (dp - difference))  # a token's score for itself is a constant


@triton.jit
def _add(sums, out, place, out_place, value, width, inside, earlier, later, W: tl.constexpr):
    """Add to what earlier rounds have found, for those that come later; the last one writes the answer."""
    column = tl.arange(0, W)
    seen = inside[:, None] & (column[None, :] < width)
    sums += place[:, None] * width + column[None, :]
    if earlier > 0:
        value += tl.load(sums, mask=seen, other=0.0)
    if later > 0:
        tl.store(sums, value, mask=seen)
    else:
        tl.store(out + out_place[:, None] * width + column[None, :], value.to(out.dtype.element_ty), mask=seen)


@triton.jit(do_not_specialize=["rounds", "round"])
def backward(
    q, k, v, real, order, above, log_sum, difference, dq, dk, dv, sum_q, sum_k, sum_v,
    q_row, q_head, q_stride, k_row, k_head, k_stride, v_row, v_head, v_stride,
    heads, rounds, round, length, slots, scale, d, e,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, CAUSAL: tl.constexpr, PADDED: tl.constexpr, UNIT: tl.constexpr,
    FITS: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Of one chunk, the gradients of its queries (by what they read) and of its keys and values (by who reads them).

    A round has every token once, so the rounds follow each other and add up in float32, always in the same order:
    sum_q, sum_k [b h n d], sum_v [b h n e], and dq, dk, dv [b n h ·] in the end. `above` is [b n h e]. UNIT: k are the
    queries, and what goes to them as keys goes through making them unit vectors into dq.
    """
    chunks = rounds * slots // C
    chunk = round * (slots // C) + tl.program_id(0)
    line = tl.program_id(1).to(tl.int64)
    row, head = line // heads, line % heads
    order += line * rounds * slots
    q += row * q_row + head * q_head
    k += row * k_row + head * k_head
    v += row * v_row + head * v_head
    above += (row * length * heads + head) * e
    log_sum += line * length
    difference += line * length
    real += row * length
    own = tl.load(order + chunk * C + tl.arange(0, C))
    inside = own < length
    q_tile = _rows(q, own, q_stride, length, d, D, FITS)
    if UNIT:
        k_tile = _unit(q_tile, d)[1].to(q_tile.dtype)
    else:
        k_tile = _rows(k, own, k_stride, length, d, D, FITS)
    v_tile, above_tile = _rows(v, own, v_stride, length, e, E, FITS), _rows(above, own, heads * e, length, e, E, FITS)
    sums = tl.load(log_sum + own, mask=inside, other=float("inf"))
    differences = tl.load(difference + own, mask=inside, other=0.0)

    s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * (scale * LOG2_E)
    p = _weights(s, own[:, None], own[None, :], sums[:, None], real, length, CAUSAL, PADDED, FITS)
    dp = tl.dot(above_tile, tl.trans(v_tile), input_precision=PRECISION)
    ds = _to_scores(p, dp, own[:, None], own[None, :], differences[:, None]).to(q_tile.dtype)
    p = p.to(above_tile.dtype)
    place, answer = line * length + own, (row * length + own) * heads + head
    later = rounds - 1 - round

    to_key = tl.dot(tl.trans(ds), q_tile, input_precision=PRECISION)
    to_value = tl.dot(tl.trans(p), above_tile, input_precision=PRECISION)
    for back in tl.static_range(-AFTER, BEFORE + 1):
        if back != 0:
            reader = (chunk + back + chunks) % chunks  # a chunk whose queries read this one
            theirs = tl.load(order + reader * C + tl.arange(0, C))
            their_q = _rows(q, theirs, q_stride, length, d, D, FITS)
            their_above = _rows(above, theirs, heads * e, length, e, E, FITS)
            their_sums = tl.load(log_sum + theirs, mask=theirs < length, other=float("inf"))
            their_difference = tl.load(difference + theirs, mask=theirs < length, other=0.0)
            s = tl.dot(k_tile, tl.trans(their_q), input_precision=PRECISION) * (scale * LOG2_E)  # [keys queries]
            read = _weights(s, theirs[None, :], own[:, None], their_sums[None, :], real, length, CAUSAL, PADDED, FITS)
            to_value = tl.dot(read.to(their_above.dtype), their_above, to_value, input_precision=PRECISION)
            dp = tl.dot(v_tile, tl.trans(their_above), input_precision=PRECISION)
            to_s = _to_scores(read, dp, theirs[None, :], own[:, None], their_difference[None, :])
            to_key = tl.dot(to_s.to(their_q.dtype), their_q, to_key, input_precision=PRECISION)
    _add(sum_v, dv, place, answer, to_value, e, inside, round, later, E)
    if UNIT:  # through k = x / |x|: dx = (dk - k (k·dk)) / |x|
        inverse, unit = _unit(q_tile, d)
        to_query = (to_key - unit * tl.sum(unit * to_key, 1)[:, None]) * inverse[:, None]
    else:
        _add(sum_k, dk, place, answer, to_key * scale, d, inside, round, later, D)
        to_query = tl.zeros([C, D], tl.float32)

    to_query = tl.dot(ds, k_tile, to_query, input_precision=PRECISION)
    for back in tl.static_range(-AFTER, BEFORE + 1):
        if back != 0:
            other = (chunk - back + chunks) % chunks  # a chunk that this one's queries read
            theirs = tl.load(order + other * C + tl.arange(0, C))
            their_k = _rows(k, theirs, k_stride, length, d, D, FITS)
            if UNIT:
                their_k = _unit(their_k, d)[1].to(q_tile.dtype)
            their_v = _rows(v, theirs, v_stride, length, e, E, FITS)
            s = tl.dot(q_tile, tl.trans(their_k), input_precision=PRECISION) * (scale * LOG2_E)
            read = _weights(s, own[:, None], theirs[None, :], sums[:, None], real, length, CAUSAL, PADDED, FITS)
            dp = tl.dot(above_tile, tl.trans(their_v), input_precision=PRECISION)
            to_s = _to_scores(read, dp, own[:, None], theirs[None, :], differences[:, None])
            to_query = tl.dot(to_s.to(their_k.dtype), their_k, to_query, input_precision=PRECISION)
    _add(sum_q, dq, place, answer, to_query * scale, d, inside, round, later, D)
