"""Programs for a GPU: exponentials of products with fixed directions, and the way back.

The exponents live in a program's registers alone: what is read is x, what is written are features.

Shapes: M tokens of a program, D width of x, F features that are formed at once (both filled up to a power of two).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _exponents(x, w, first, features, d, D: tl.constexpr, F: tl.constexpr):
    """x [M D] times the directions from `first` on, times log₂ e; -∞ past the last direction. [M F]"""
    feature, column = first + tl.arange(0, F), tl.arange(0, D)
    places = w + feature[None, :] * d + column[:, None]
    block = tl.load(places, mask=(feature[None, :] < features) & (column[:, None] < d), other=0.0)  # [D F]
    return tl.where(feature[None, :] < features, tl.dot(x, block, input_precision="ieee") * LOG2_E, float("-inf"))


@triton.jit
def forward(
    x, w, o, largest, x_row, x_head, x_token, heads, length, features, d,
    M: tl.constexpr, D: tl.constexpr, F: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """o [b h n m] and the largest exponents [b h n] of M tokens of a head. ONCE: all features are formed at once."""
    line = tl.program_id(1).to(tl.int64)
    token, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    x += line // heads * x_row + line % heads * x_head
    inside = token[:, None] < length
    tile = tl.load(
        x + token[:, None].to(tl.int64) * x_token + column[None, :], mask=inside & (column[None, :] < d), other=0.0
    )
    exponents = _exponents(tile, w, 0, features, d, D, F)
    most = tl.max(exponents, 1)
    if not ONCE:
        for first in range(F, features, F):
            most = tl.maximum(most, tl.max(_exponents(tile, w, first, features, d, D, F), 1))
    tl.store(largest + line * length + token, most / LOG2_E, mask=token < length)
    o += line * length * features + token[:, None].to(tl.int64) * features
    feature = tl.arange(0, F)
    tl.store(o + feature[None, :], tl.exp2(exponents - most[:, None]), mask=inside & (feature[None, :] < features))
    if not ONCE:
        for first in range(F, features, F):
            exponents = _exponents(tile, w, first, features, d, D, F)
            feature = first + tl.arange(0, F)
            tl.store(
                o + feature[None, :], tl.exp2(exponents - most[:, None]), mask=inside & (feature[None, :] < features)
            )


@triton.jit
def backward(
    pull, o, w, dx, above_row, above_head, above_token, heads, length, features, d,
    M: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """dx [b h n d] = (pull ∘ o) w: an exponential is its own derivative."""
    line = tl.program_id(1).to(tl.int64)
    token, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    inside = token[:, None] < length
    pull += line // heads * above_row + line % heads * above_head + token[:, None].to(tl.int64) * above_token
    o += line * length * features + token[:, None].to(tl.int64) * features
    gathered = tl.zeros([M, D], tl.float32)
    for first in range(0, features, F):
        feature = first + tl.arange(0, F)
        there = inside & (feature[None, :] < features)
        product = tl.load(pull + feature[None, :], mask=there, other=0.0) * tl.load(
            o + feature[None, :], mask=there, other=0.0
        )
        places = w + feature[:, None] * d + column[None, :]
        block = tl.load(places, mask=(feature[:, None] < features) & (column[None, :] < d), other=0.0)  # [F D]
        gathered += tl.dot(product, block, input_precision="ieee")
    places = dx + line * length * d + token[:, None].to(tl.int64) * d + column[None, :]
    tl.store(places, gathered, mask=inside & (column[None, :] < d))
