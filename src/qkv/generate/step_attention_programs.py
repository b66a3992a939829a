"""The attentions of a step: a token of each row reads its earlier ones, or the memory of its source.

Slots of a head are divided into shares, so that a few rows fill a GPU too; whichever share ends last joins them all.

EARLY programs begin while the one before them still runs, and wait for its end.

The maximum of no scores is -1e30 here, a number, so that a difference of two is one.

Shapes: r rows, H query heads and G key/value heads of width D, C slots of the cache, m sources of S slots.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def taken_in(score, v, most, sums, outs):
    """More slots, each summed up with those at its place before, by their own maximum, so that none waits for others.

    score, maxima and sums [STEP], v and values [STEP D]
    """
    higher = tl.maximum(most, score)
    p, shrink = tl.exp(score - higher), tl.exp(most - higher)
    return higher, sums * shrink + p, outs * shrink[:, None] + p[:, None] * v


@triton.jit
def joined(
    most, total, out, o_ptr, part_ptr, stat_ptr, done_ptr, line, share, shares,
    D: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """o[line]: what all its shares have read. A line that saw nothing gets zeros.

    part float32 [lines SHARES D]: not yet divided by its sum; stat [lines SHARES 2]: the maximum and that sum; done
    [lines]: the shares that have ended.
    """
    d = tl.arange(0, D)
    if SHARES > 1:
        mine = line * SHARES + share
        tl.store(part_ptr + mine * D + d, out)
        tl.store(stat_ptr + mine * 2, most)
        tl.store(stat_ptr + mine * 2 + 1, total)
        tl.debug_barrier()  # before it is said, all of it is written
        if tl.atomic_add(done_ptr + line, 1, sem="acq_rel") == shares - 1:
            every = tl.arange(0, SHARES)
            stat = stat_ptr + (line * SHARES + every) * 2
            high = tl.load(stat, mask=every < shares, other=float("-inf"), cache_modifier=".cg")
            weight = tl.exp(high - tl.max(high, 0))
            totals = tl.load(stat + 1, mask=every < shares, other=0.0, cache_modifier=".cg")
            parts = part_ptr + (line * SHARES + every[:, None]) * D + d[None, :]
            parts = tl.load(parts, mask=(every < shares)[:, None], other=0.0, cache_modifier=".cg")
            total = tl.sum(weight * totals, 0)
            out = tl.sum(weight[:, None] * parts, 0) / tl.where(total > 0, total, 1.0)
            tl.store(o_ptr + line * D + d, out.to(o_ptr.dtype.element_ty))
            tl.store(done_ptr + line, 0)
    else:
        tl.store(o_ptr + line * D + d, (out / tl.where(total > 0, total, 1.0)).to(o_ptr.dtype.element_ty))


@triton.jit
def attend(
    qkv_ptr, k_ptr, v_ptr, o_ptr, part_ptr, stat_ptr, done_ptr, positions_ptr, first_ptr, cos_ptr, sin_ptr, partner_ptr,
    bucket_ptr, table_ptr, scale, C,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SHARES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    ROTARY: tl.constexpr, BIASED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """o[row, head]: one head of one row over a share of its slots.

    A share has STEP slots at least, so where few are filled, few shares have any; the others end at once. The first
    share reads the newest token and keeps it in the cache. qkv [r (H + 2 G) D], caches [r G C D], o [r H D].
    A row's slots go from `first` to `first + position`, where its newest token stands. BIASED: to the score of a slot
    comes table[bucket[distance], head].
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, head, share = tl.program_id(0) // H, tl.program_id(0) % H, tl.program_id(1)
    position = tl.load(positions_ptr + row)
    each = tl.maximum(tl.cdiv(position, SHARES * STEP), 1) * STEP  # of the slots before the newest
    if (share > 0) & (share * each >= position):
        return
    group = head // (H // G)
    d = tl.arange(0, D)
    first = tl.load(first_ptr + row)
    mine = qkv_ptr + row * (H + 2 * G) * D
    q_ptr, new_k_ptr, new_v_ptr = mine + head * D, mine + (H + group) * D, mine + (H + G + group) * D
    q = tl.load(q_ptr + d).to(tl.float32)
    new_k = tl.load(new_k_ptr + d).to(tl.float32)
    if ROTARY:
        partner = tl.load(partner_ptr + d)
        cos, sin = tl.load(cos_ptr + position * D + d), tl.load(sin_ptr + position * D + d)
        q = q * cos + tl.load(q_ptr + partner).to(tl.float32) * sin
        new_k = new_k * cos + tl.load(new_k_ptr + partner).to(tl.float32) * sin
        new_k = new_k.to(k_ptr.dtype.element_ty).to(tl.float32)
        q = q.to(k_ptr.dtype.element_ty).to(tl.float32)
    q *= scale
    keys, values = k_ptr + (row * G + group).to(tl.int64) * C * D, v_ptr + (row * G + group).to(tl.int64) * C * D
    begin, end = first + share * each, first + tl.minimum((share + 1) * each, position)
    most = tl.full([STEP], -1e30, tl.float32)
    sums, outs = tl.zeros([STEP], tl.float32), tl.zeros([STEP, D], tl.float32)
    for start in tl.range(begin, end, STEP, num_stages=STAGES):
        slot = start + tl.arange(0, STEP)
        inside = slot < end
        there = slot[:, None] * D + d[None, :]
        k = tl.load(keys + there, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + there, mask=inside[:, None], other=0.0).to(tl.float32)
        score = tl.sum(k * q[None, :], 1)
        if BIASED:
            bucket = tl.load(bucket_ptr + first + position - slot, mask=inside, other=0)
            score += tl.load(table_ptr + bucket * H + head).to(tl.float32)
        most, sums, outs = taken_in(tl.where(inside, score, float("-inf")), v, most, sums, outs)
    new_v = tl.load(new_v_ptr + d)
    if (share == 0) & (head % (H // G) == 0):
        tl.store(keys + (first + position) * D + d, new_k.to(k_ptr.dtype.element_ty))
        tl.store(values + (first + position) * D + d, new_v)
    newest = tl.sum(q * new_k)
    if BIASED:
        newest += tl.load(table_ptr + tl.load(bucket_ptr) * H + head).to(tl.float32)
    newest = tl.where(share == 0, newest, -1e30)
    high = tl.maximum(tl.max(most, 0), newest)
    weight, own = tl.exp(most - high), tl.exp(newest - high)
    total = tl.sum(weight * sums, 0) + own
    out = tl.sum(weight[:, None] * outs, 0) + own * new_v.to(tl.float32)
    shares = tl.maximum(tl.cdiv(position, each), 1)  # that have slots
    joined(high, total, out, o_ptr, part_ptr, stat_ptr, done_ptr, row * H + head, share, shares, D, SHARES)


@triton.jit
def attend_memory(
    q_ptr, k_ptr, v_ptr, real_ptr, o_ptr, part_ptr, stat_ptr, done_ptr, scale, S,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BEAMS: tl.constexpr, SHARES: tl.constexpr, STEP: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """o[row, head]: one head of one row over a share of the memory of its source, which BEAMS rows read.

    q and o [r H D], keys and values [m G S D], real [m S]: 0 for padding.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    line, share = tl.program_id(0), tl.program_id(1)
    row, head = line // H, line % H
    source, group = row // BEAMS, head // (H // G)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + line * D + d).to(tl.float32) * scale
    keys, values = k_ptr + (source * G + group).to(tl.int64) * S * D, v_ptr + (source * G + group).to(tl.int64) * S * D
    each = tl.cdiv(S, SHARES)
    end = tl.minimum((share + 1) * each, S)
    most = tl.full([STEP], -1e30, tl.float32)
    sums, outs = tl.zeros([STEP], tl.float32), tl.zeros([STEP, D], tl.float32)
    for start in tl.range(share * each, end, STEP, num_stages=STAGES):
        slot = start + tl.arange(0, STEP)
        inside = slot < end
        there = slot[:, None] * D + d[None, :]
        k = tl.load(keys + there, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + there, mask=inside[:, None], other=0.0).to(tl.float32)
        seen = tl.load(real_ptr + source * S + slot, mask=inside, other=0) > 0
        score = tl.where(seen, tl.sum(k * q[None, :], 1), float("-inf"))
        most, sums, outs = taken_in(score, v, most, sums, outs)
    high = tl.max(most, 0)
    weight = tl.exp(most - high)
    total, out = tl.sum(weight * sums, 0), tl.sum(weight[:, None] * outs, 0)
    joined(high, total, out, o_ptr, part_ptr, stat_ptr, done_ptr, line, share, SHARES, D, SHARES)
