"""Which weights a dropout leaves, worked out wherever a program needs to know it. `flash_dropout.py` specifies it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mixed(x):
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def lot_of(seed, line):
    """Two numbers of a row and head, which all of its weights share."""
    first = _mixed(tl.load(seed).to(tl.uint32) + line.to(tl.uint32) * 0x9E3779B9)
    return first, _mixed(first + 0x85EBCA6B)


@triton.jit
def stays(first, second, query, key, keys, dropped, TURNED: tl.constexpr):
    """Which of a tile's weights stay: queries down and keys across, or TURNED. `dropped` of 2³¹ do not."""
    if TURNED:
        x = (query[None, :] * keys + key[:, None]).to(tl.uint32)
    else:
        x = (query[:, None] * keys + key[None, :]).to(tl.uint32)
    x ^= first
    x ^= x >> 16
    x *= 0x7FEB352D
    x += second
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return (x >> 1).to(tl.int32) >= dropped
