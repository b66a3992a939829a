"""Maps of a step with some rows, by tensor cores: the norm before a product and the sum after it are in one program.

With 5 to 32 rows a step still takes as long as its weights take to be read, but a product row by row takes longer. Each
program makes a few outputs of all rows. Its inputs are cut into PARTS, one a warp, that are summed at the end: a single
sum over all inputs, one after the other, would take longer than reading them.

Shapes: r rows, K inputs and N outputs of a map.
"""

import triton
import triton.language as tl

from qkv.generate.step_programs import activated, biases


@triton.jit
def standardised(x, inside, epsilon, K: tl.constexpr, RMS: tl.constexpr):
    """Each row of x [PARTS r PART], which is 0 outside, with mean 0 (as it is, for RMS) and deviation 1."""
    if not RMS:
        mean = tl.sum(tl.sum(x, 2), 0) / K  # [r]
        x = tl.where(inside, x - mean[None, :, None], 0.0)
    rate = tl.rsqrt(tl.sum(tl.sum(x * x, 2), 0) / K + epsilon)
    return x * rate[None, :, None]


@triton.jit
def norm_product(
    x_ptr, gain_ptr, shift_ptr, w_ptr, bias_ptr, y_ptr, N, epsilon, scale,
    K: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
    TALL: tl.constexpr, RMS: tl.constexpr, SHIFTED: tl.constexpr, BIASED: tl.constexpr, FROM: tl.constexpr,
    TO: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """y[row, n] = activation(scale · norm(x[row]) · W[n] + bias[n]) for TALL outputs n; x float32 [ROWS K], W [N K].

    GATED: activation(… W[n] …) times the same of W[N + n], without the activation.
    """
    n = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    within = n < N
    rows = tl.arange(0, PADDED)
    k = tl.arange(0, PARTS)[:, None] * PART + tl.arange(0, PART)[None, :]  # [PARTS PART]
    inside = k < K
    known = (rows[None, :, None] < ROWS) & inside[:, None, :]
    x = tl.load(x_ptr + rows[None, :, None] * K + k[:, None, :], mask=known, other=0.0)  # [PARTS r PART]
    gain = tl.load(gain_ptr + k, mask=inside, other=0.0).to(tl.float32)
    if SHIFTED:
        shift = tl.load(shift_ptr + k, mask=inside, other=0.0).to(tl.float32)
    there = w_ptr + n[None, None, :] * K + k[:, :, None]
    both = within[None, None, :] & inside[:, :, None]
    w = tl.load(there, mask=both, other=0.0)  # [PARTS PART TALL]
    if GATED:
        u = tl.load(there + N.to(tl.int64) * K, mask=both, other=0.0)
    h = standardised(x, inside[:, None, :], epsilon, K, RMS) * gain[:, None, :]
    if SHIFTED:
        h += shift[:, None, :]
    h = (h * scale).to(w.dtype)
    y = tl.sum(tl.dot(h, w), 0)  # [r TALL]
    if BIASED:
        y += biases(bias_ptr, n, within, FROM, TO)[None, :]
    y = activated(y, ACTIVATION)
    if GATED:
        value = tl.sum(tl.dot(h, u), 0)
        if BIASED:
            value += tl.load(bias_ptr + N + n, mask=within, other=0.0).to(tl.float32)[None, :]
        y *= value
    y = y.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + rows[:, None] * N + n[None, :], y, mask=(rows[:, None] < ROWS) & within[None, :])


@triton.jit
def product_add(
    h_ptr, w_ptr, bias_ptr, x_ptr, N,
    K: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
    PADDED: tl.constexpr, TALL: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """x[row, n] += h[row] · W[n] + bias[n] for TALL outputs n; x float32 [ROWS N], W [N K]."""
    n = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    within = n < N
    rows = tl.arange(0, PADDED)
    there = x_ptr + rows[:, None] * N + n[None, :]
    known = (rows[:, None] < ROWS) & within[None, :]
    x = tl.load(there, mask=known, other=0.0)
    if BIASED:
        x += tl.load(bias_ptr + n, mask=within, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros([PARTS, PADDED, TALL], tl.float32)
    for chunk in range(CHUNKS):
        k = chunk * PARTS * PART + tl.arange(0, PARTS)[:, None] * PART + tl.arange(0, PART)[None, :]
        inside = k < K
        both = within[None, None, :] & inside[:, :, None]
        w = tl.load(w_ptr + n[None, None, :] * K + k[:, :, None], mask=both, other=0.0)  # [PARTS PART TALL]
        filled = (rows[None, :, None] < ROWS) & inside[:, None, :]
        h = tl.load(h_ptr + rows[None, :, None] * K + k[:, None, :], mask=filled, other=0.0)  # [PARTS r PART]
        total = tl.dot(h, w, total)
    tl.store(there, x + tl.sum(total, 0), mask=known)
