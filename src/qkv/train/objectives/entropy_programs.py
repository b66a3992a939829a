"""A program for a GPU: cross-entropy and its slope of one row of logits, the arithmetic of `entropy_of_rows.py`.

The row is read once for its largest number and its sum of exponentials, which every lane keeps for the columns it
meets, and once more, mostly from the cache, for its slopes. Logits are taken times log₂e, so that the exponential is
the hardware's own, 2^x.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def entropy_of_rows(
    logits, slopes, wanted, real, normaliser, losses, likelihoods, gradient,
    vocabulary, width, stride, slopes_stride, smoothing,
    MEASURED: tl.constexpr, SLOPED: tl.constexpr, SMOOTHED: tl.constexpr, SCALED: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A program for each row. `width` columns may be read and written, of which the vocabulary's come first.

    MEASURED: normaliser, losses and likelihoods are filled in; if not, the normaliser is read. SLOPED: so are slopes,
    which may be the logits themselves; SCALED: times `gradient`.
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
        sums = tl.zeros([N], tl.float32)  # of 2^(x - peak)
        total = tl.zeros([N], tl.float32)
        for start in range(0, read, N):
            column = start + columns
            x = tl.load(logits + column, mask=column < width, other=0.0, eviction_policy="evict_last").to(tl.float32)
            x = tl.where(column < vocabulary, x * LOG2_E, float("-inf"))
            apart = x - peak
            shrunk = tl.exp2(-tl.abs(apart))
            sums = tl.where(apart > 0, sums * shrunk + 1, sums + shrunk)
            peak = tl.maximum(peak, x)
            if SMOOTHED:
                total += tl.where(column < vocabulary, x, 0.0)
        top = tl.max(peak, 0)
        log_sum = top + tl.log2(tl.sum(sums * tl.exp2(peak - top), 0))  # to the base 2
        likelihood = log_sum * LN_2 - said
        loss = likelihood
        if SMOOTHED:
            evenly = (log_sum - tl.sum(total, 0) / vocabulary) * LN_2
            loss = (1 - smoothing) * likelihood + smoothing * evenly
        tl.store(normaliser + row, log_sum * LN_2)
        tl.store(losses + row, tl.where(counts, loss, 0.0))
        tl.store(likelihoods + row, tl.where(counts, likelihood, 0.0))
    else:
        log_sum = tl.load(normaliser + row) * LOG2_E
    if SLOPED:
        for start in range(0, width, N):
            column = start + columns
            x = tl.load(logits + column, mask=column < read, other=0.0, eviction_policy="evict_first")
            slope = tl.exp2(x.to(tl.float32) * LOG2_E - log_sum)
            if SMOOTHED:
                slope -= smoothing / vocabulary
            slope = tl.where(column == aim, slope - (1 - smoothing), slope)
            if SCALED:
                slope *= tl.load(gradient)
            slope = tl.where(counts & (column < vocabulary), slope, 0.0)
            tl.store(slopes + column, slope.to(slopes.dtype.element_ty), mask=column < width)
