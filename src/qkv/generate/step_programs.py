"""One token of a GPT-like decoder, in programs that read every weight once and leave nothing to be launched between.

With one row or a few, a step takes as long as its weights take to be read. So each program reads a matrix, and does
whatever stands before and after the product too: the norm, the activation, the sum with the stream. The stream is kept
in float32.

EARLY programs begin while the one before them still runs, read of their weights what they can hold, and wait for its
end with all else. As soon as all are begun, the next may. Nothing but weights may be read before: what was written two
launches ago may not be there yet. After it all of it is, for the one before has waited too.

Shapes: r rows, K inputs and N outputs of a map, V vocabulary, T tiles of it.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from qkv.parts.activation_programs import activated


@triton.jit
def moments(x, inside, epsilon, K: tl.constexpr, RMS: tl.constexpr):
    """The mean (0 for RMS) and the reciprocal deviation of one row."""
    mean = 0.0 if RMS else tl.sum(x) / K
    centred = tl.where(inside, x - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(centred * centred) / K + epsilon)


@triton.jit
def gain_and_shift(gain_ptr, shift_ptr, k, inside, SHIFTED: tl.constexpr):
    gain = tl.load(gain_ptr + k, mask=inside, other=0.0)
    return gain, tl.load(shift_ptr + k, mask=inside, other=0.0) if SHIFTED else tl.zeros_like(gain)


@triton.jit
def biases(bias_ptr, n, within, FROM: tl.constexpr, TO: tl.constexpr):
    """Of the outputs n, of which those in the gap from FROM to TO have none, nor a place among the biases."""
    outside = within & ((n < FROM) | (n >= TO))
    return tl.load(bias_ptr + tl.where(n < FROM, n, n - (TO - FROM)), mask=outside, other=0.0)


@triton.jit
def embed(
    ids_ptr, positions_ptr, tokens_ptr, places_ptr, x_ptr, scale,
    K: tl.constexpr, WIDE: tl.constexpr, PLACED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """x[row] = scale · tokens[ids[row]] + places[positions[row]]"""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    k = tl.arange(0, WIDE)
    inside = k < K
    x = tl.load(tokens_ptr + tl.load(ids_ptr + row) * K + k, mask=inside, other=0.0).to(tl.float32) * scale
    if PLACED:
        x += tl.load(places_ptr + tl.load(positions_ptr + row) * K + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_ptr + row * K + k, x, mask=inside)


@triton.jit
def norm_map(
    x_ptr, gain_ptr, shift_ptr, w_ptr, bias_ptr, y_ptr, N, epsilon, scale,
    K: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, TALL: tl.constexpr, RMS: tl.constexpr,
    SHIFTED: tl.constexpr, BIASED: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr, ACTIVATION: tl.constexpr,
    GATED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """y[row, n] = activation(scale · norm(x[row]) · W[n] + bias[n]) for TALL outputs n; x float32 [ROWS K], W [N K].

    GATED: activation(… W[n] …) times the same of W[N + n], without the activation.
    """
    if EARLY:
        gdc_launch_dependents()
    n = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    within = n < N
    k = tl.arange(0, WIDE)
    inside = k < K
    both = within[:, None] & inside[None, :]
    w = tl.load(w_ptr + n[:, None] * K + k[None, :], mask=both, other=0.0).to(tl.float32)
    if GATED:
        u = tl.load(w_ptr + (N + n[:, None]) * K + k[None, :], mask=both, other=0.0).to(tl.float32)
    gain, shift = gain_and_shift(gain_ptr, shift_ptr, k, inside, SHIFTED)
    if EARLY:
        gdc_wait()
    for row in tl.static_range(ROWS):
        x = tl.load(x_ptr + row * K + k, mask=inside, other=0.0)
        mean, rate = moments(x, inside, epsilon, K, RMS)
        h = ((x - mean) * rate * gain.to(tl.float32) + shift.to(tl.float32)) * scale
        y = tl.sum(w * h[None, :], 1)
        if BIASED:
            y += biases(bias_ptr, n, within, FROM, TO)
        y = activated(y, ACTIVATION)
        if GATED:
            value = tl.sum(u * h[None, :], 1)
            if BIASED:
                value += tl.load(bias_ptr + N + n, mask=within, other=0.0).to(tl.float32)
            y *= value
        tl.store(y_ptr + row * N + n, y.to(y_ptr.dtype.element_ty), mask=within)


@triton.jit
def map_add(
    h_ptr, w_ptr, bias_ptr, x_ptr, N,
    K: tl.constexpr, STEP: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
    TALL: tl.constexpr, BIASED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """x[row, n] += h[row] · W[n] + bias[n] for TALL outputs n; x float32 [ROWS N], W [N K]."""
    if EARLY:
        gdc_launch_dependents()
    n = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    within = n < N
    rows = tl.arange(0, PADDED)
    total = tl.zeros([PADDED, TALL], tl.float32)
    for chunk in tl.static_range(CHUNKS):
        k = chunk * STEP + tl.arange(0, STEP)
        inside = k < K
        both = within[:, None] & inside[None, :]
        w = tl.load(w_ptr + n[:, None] * K + k[None, :], mask=both, other=0.0).to(tl.float32)
        if EARLY and chunk == 0:
            gdc_wait()
        for row in tl.static_range(ROWS):
            h = tl.load(h_ptr + row * K + k, mask=inside, other=0.0).to(tl.float32)
            total += tl.where(rows[:, None] == row, tl.sum(w * h[None, :], 1)[None, :], 0.0)
    if BIASED:
        total += tl.load(bias_ptr + n, mask=within, other=0.0).to(tl.float32)[None, :]
    there = x_ptr + rows[:, None] * N + n[None, :]
    known = (rows[:, None] < ROWS) & within[None, :]
    tl.store(there, tl.load(there, mask=known, other=0.0) + total, mask=known)


@triton.jit
def add_norm(
    x_ptr, y_ptr, gain_ptr, shift_ptr, h_ptr, epsilon, scale,
    K: tl.constexpr, WIDE: tl.constexpr, ADDED: tl.constexpr, RMS: tl.constexpr, SHIFTED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """x[row] += y[row], where something is ADDED; h[row] = scale · norm(x[row])"""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    k = tl.arange(0, WIDE)
    inside = k < K
    x = tl.load(x_ptr + row * K + k, mask=inside, other=0.0)
    if ADDED:
        x += tl.load(y_ptr + row * K + k, mask=inside, other=0.0).to(tl.float32)
        tl.store(x_ptr + row * K + k, x, mask=inside)
    mean, rate = moments(x, inside, epsilon, K, RMS)
    gain, shift = gain_and_shift(gain_ptr, shift_ptr, k, inside, SHIFTED)
    h = ((x - mean) * rate * gain.to(tl.float32) + shift.to(tl.float32)) * scale
    tl.store(h_ptr + row * K + k, h.to(h_ptr.dtype.element_ty), mask=inside)


@triton.jit
def activate(
    u_ptr, y_ptr, N, ACTIVATION: tl.constexpr, GATED: tl.constexpr, STEP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """y[row] = activation(u[row]); GATED: of its first half, times the second."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    n = tl.program_id(1) * STEP + tl.arange(0, STEP)
    inside = n < N
    mine = u_ptr + row * N * (2 if GATED else 1)
    y = activated(tl.load(mine + n, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
    if GATED:
        y *= tl.load(mine + N + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * N + n, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def best_of_tiles(
    logits_ptr, forbidden_ptr, stat_ptr, at_ptr, stride, V, T, TILE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Of a tile of a row's logits: the highest, the sum of exponentials below it, the highest allowed and its place.

    stat float32 [r 3 T], at int32 [r T]
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, tile = tl.program_id(0), tl.program_id(1)
    n = tile * TILE + tl.arange(0, TILE)
    inside = n < V
    y = tl.load(logits_ptr + row.to(tl.int64) * stride + n, mask=inside, other=float("-inf")).to(tl.float32)
    most = tl.max(y, 0)
    total = tl.sum(tl.where(inside, tl.exp(y - most), 0.0), 0)
    allowed = tl.where(tl.load(forbidden_ptr + n, mask=inside, other=1) == 0, y, float("-inf"))
    best = tl.max(allowed, 0)
    at = tl.min(tl.where((allowed == best) & inside, n, V), 0)
    mine = stat_ptr + row * 3 * T + tile
    tl.store(mine, most)
    tl.store(mine + T, total)
    tl.store(mine + 2 * T, best)
    tl.store(at_ptr + row * T + tile, at)


@triton.jit
def take_best(
    stat_ptr, at_ptr, ids_ptr, positions_ptr, count_ptr, written_ptr, logs_ptr, T, V,
    ROUND: tl.constexpr, TILES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The likeliest token of a row becomes the next to be read, is noted with its log-probability, and all move on."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    t = tl.arange(0, TILES)
    inside = t < T
    mine = stat_ptr + row * 3 * T + t
    high = tl.load(mine, mask=inside, other=float("-inf"))
    most = tl.max(high, 0)
    total = tl.sum(tl.load(mine + T, mask=inside, other=0.0) * tl.where(inside, tl.exp(high - most), 0.0), 0)
    best = tl.load(mine + 2 * T, mask=inside, other=float("-inf"))
    top = tl.max(best, 0)
    at = tl.load(at_ptr + row * T + t, mask=inside, other=V)
    token = tl.minimum(tl.min(tl.where(best == top, at, V), 0), V - 1)
    count = tl.load(count_ptr + row)
    there = count * tl.num_programs(0) + row
    tl.store(ids_ptr + row, token.to(tl.int64))
    tl.store(written_ptr + there, token.to(tl.int64))
    tl.store(logs_ptr + there, top - most - tl.log(total))
    tl.store(count_ptr + row, (count + 1) % ROUND)
    tl.store(positions_ptr + row, tl.load(positions_ptr + row) + 1)
