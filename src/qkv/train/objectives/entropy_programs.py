"""A program for a GPU: cross-entropy and its slope of one row of logits, the arithmetic of `entropy_of_rows.py`.

The row is read once for its largest number and its sum of exponentials, which every lane keeps for the columns it
meets, and once more, mostly from the cache, for its slopes; or once only, where a program can hold all of it.
Exponentials are the hardware's own, 2^x, of differences times log₂e: a difference of large numbers is exact, and its
product is not, which would make much of a little if it were taken first.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def entropy_of_rows(
    logits, slopes, narrow, wanted, real, normaliser, losses, likelihoods, gradient,
    vocabulary, width, stride, slopes_stride, narrow_stride, smoothing,
    MEASURED: tl.constexpr, SLOPED: tl.constexpr, SMOOTHED: tl.constexpr, SCALED: tl.constexpr,
    TIMES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A program for each row. `width` columns may be read and written, of which the vocabulary's come first.

    MEASURED: normaliser, losses and likelihoods are filled in; if not, the normaliser is read. SLOPED: so are slopes,
    which may be the logits themselves; SCALED: times `gradient`. TIMES: if not 0, narrow are slopes times it in 8 bits.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    LN_2: tl.constexpr = 0.6931471805599453
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    slopes += row * slopes_stride
    counts = tl.load(real + row) != 0
    aim = tl.load(wanted + row)
    columns = tl.arange(0, N)
    read = tl.where(counts, width, 0)  # columns
    if MEASURED:
        # A token that is not in the vocabulary makes the loss NaN, which nobody overlooks.
        known = counts & (aim >= 0) & (aim < vocabulary)
        said = tl.load(logits + aim, mask=known, other=float("nan")).to(tl.float32)
        peak = tl.full([N], -1e30, tl.float32)  # of each lane, and not -inf, from which -inf cannot be taken
        sums = tl.zeros([N], tl.float32)  # of e^(x - peak)
        total = tl.zeros([N], tl.float32)
        for start in range(0, read, N):
            column = start + columns
            x = tl.load(logits + column, mask=column < width, other=0.0, eviction_policy="evict_last").to(tl.float32)
            x = tl.where(column < vocabulary, x, float("-inf"))
            apart = (x - peak) * LOG2_E
            shrunk = tl.exp2(-tl.abs(apart))
            sums = tl.where(apart > 0, sums * shrunk + 1, sums + shrunk)
            peak = tl.maximum(peak, x)
            if SMOOTHED:
                total += tl.where(column < vocabulary, x, 0.0)
        top = tl.max(peak, 0)
        spread = tl.log2(tl.sum(sums * tl.exp2((peak - top) * LOG2_E), 0)) * LN_2
        log_sum = top + spread
        likelihood = top - said + spread
        loss = likelihood
        if SMOOTHED:
            loss = (1 - smoothing) * likelihood + smoothing * (log_sum - tl.sum(total, 0) / vocabulary)
        tl.store(normaliser + row, log_sum)
        tl.store(losses + row, tl.where(counts, loss, 0.0))
        tl.store(likelihoods + row, tl.where(counts, likelihood, 0.0))
    else:
        log_sum = tl.load(normaliser + row)
    if SLOPED:
        for start in range(0, width, N):
            column = start + columns
            x = tl.load(logits + column, mask=column < read, other=0.0, eviction_policy="evict_first")
            slope = tl.exp2((x.to(tl.float32) - log_sum) * LOG2_E)
            if SMOOTHED:
                slope -= smoothing / vocabulary
            slope = tl.where(column == aim, slope - (1 - smoothing), slope)
            if SCALED:
                slope *= tl.load(gradient)
            slope = tl.where(counts & (column < vocabulary), slope, 0.0)
            tl.store(slopes + column, slope.to(slopes.dtype.element_ty), mask=column < width)
            if TIMES:
                tl.store(narrow + row * narrow_stride + column, in_eight_bits(slope, TIMES), mask=column < width)


@triton.jit
def in_eight_bits(slope, TIMES: tl.constexpr):
    """With 5 bits of exponent, as bytes: the least of slopes are a billion times smaller than the largest."""
    return (slope * TIMES).to(tl.float8e5).to(tl.int8, bitcast=True)


@triton.jit
def halves(words, nothing):
    """Two bfloat16 numbers of each word in float32, of which they are the upper half.

    `nothing` is 0, which the compiler cannot know until the row's measures are there; it would make the numbers wide at
    once and hold twice as much.
    """
    words ^= nothing
    return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)


@triton.jit
def entropy_of_held_rows(
    logits, narrow, wanted, real, normaliser, losses, likelihoods,
    vocabulary, width, stride, narrow_stride, smoothing,
    SMOOTHED: tl.constexpr, TIMES: tl.constexpr, FULL: tl.constexpr, TILES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """As `entropy_of_rows` MEASURED and SLOPED in place, of bfloat16 rows of at most TILES · 2 N columns, read once.

    A row stays in registers as it came, two numbers in a word: its largest is found, its exponentials are summed, and
    computed once more for its slopes. `width` is even, the first FULL tiles lie within the vocabulary.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    LN_2: tl.constexpr = 0.6931471805599453
    LEAST: tl.constexpr = -8323200  # -inf twice, 0xff80ff80
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    narrow += row * narrow_stride
    words = logits.to(tl.pointer_type(tl.int32), bitcast=True)
    lane = tl.arange(0, N)
    if tl.load(real + row) == 0:
        for start in range(0, width, 2 * N):
            column = start + tl.arange(0, 2 * N)
            tl.store(logits + column, tl.zeros([2 * N], logits.dtype.element_ty), mask=column < width)
            if TIMES:
                tl.store(narrow + column, tl.zeros([2 * N], tl.int8), mask=column < width)
        tl.store(normaliser + row, 0.0)
        tl.store(losses + row, 0.0)
        tl.store(likelihoods + row, 0.0)
    else:
        held = ()
        for tile in tl.static_range(TILES):
            at = tile * N + lane
            if tile < FULL:
                word = tl.load(words + at, eviction_policy="evict_first")
            else:
                word = tl.load(words + at, mask=at * 2 < width, other=LEAST, eviction_policy="evict_first")
                word = tl.where(at * 2 + 1 < vocabulary, word, (word & 65535) | (LEAST & -65536))
                word = tl.where(at * 2 < vocabulary, word, LEAST)
            held = held + (word,)  # type: ignore[assignment]
        peak = tl.full([N], -1e30, tl.float32)  # not -inf, from which -inf cannot be taken
        for tile in tl.static_range(TILES):
            even, odd = halves(held[tile], 0)
            peak = tl.maximum(peak, tl.maximum(even, odd))
        top = tl.max(peak, 0)
        aim = tl.load(wanted + row)
        known = (aim >= 0) & (aim < vocabulary)  # if not, the loss is NaN
        said = tl.load(logits + aim, mask=known, other=float("nan")).to(tl.float32)
        nothing = (top == float("inf")).to(tl.int32)  # or else all is NaN
        sums = tl.zeros([N], tl.float32)
        total = tl.zeros([N], tl.float32)
        for tile in tl.static_range(TILES):
            even, odd = halves(held[tile], nothing)
            sums += tl.exp2((even - top) * LOG2_E) + tl.exp2((odd - top) * LOG2_E)
            if SMOOTHED:
                if tile >= FULL:
                    at = tile * N + lane
                    even, odd = tl.where(at * 2 < vocabulary, even, 0.0), tl.where(at * 2 + 1 < vocabulary, odd, 0.0)
                total += even + odd
        spread = tl.log2(tl.sum(sums, 0))  # to the base 2
        likelihood = top - said + spread * LN_2
        loss = likelihood
        evenly = 0.0
        if SMOOTHED:
            loss = (1 - smoothing) * likelihood + smoothing * (top + spread * LN_2 - tl.sum(total, 0) / vocabulary)
            evenly = smoothing / vocabulary
        tl.store(normaliser + row, top + spread * LN_2)
        tl.store(losses + row, loss)
        tl.store(likelihoods + row, likelihood)
        nothing = (spread == float("inf")).to(tl.int32)
        for tile in tl.static_range(TILES):
            even, odd = halves(held[tile], nothing)
            column = tile * 2 * N + tl.arange(0, 2 * N)
            even = tl.exp2((even - top) * LOG2_E - spread)
            odd = tl.exp2((odd - top) * LOG2_E - spread)
            slope = tl.join(even, odd).reshape(2 * N) - evenly
            if tile >= FULL:
                slope = tl.where(column < vocabulary, slope, 0.0)
            tl.store(logits + column, slope.to(logits.dtype.element_ty), mask=column < width)
            if TIMES:
                tl.store(narrow + column, in_eight_bits(slope, TIMES), mask=column < width)
        aim = tl.load(wanted + row)  # rather than hold it meanwhile
        tl.debug_barrier()  # the wanted token's slope is written again, after all others
        slope = tl.exp2((said - top) * LOG2_E - spread) - evenly - (1 - smoothing)
        tl.store(logits + aim, slope.to(logits.dtype.element_ty), mask=known)
        if TIMES:
            tl.store(narrow + aim, in_eight_bits(slope, TIMES), mask=known)
