"""Matrices in 8 bits, each row over a power of two of its own: rounded, and turned for products on the way back.

A row needs nothing but itself to be rounded, so it is one pass, and a compiler makes it part of whatever computed the
row: a norm, an activation, its gradient. Powers of two change exponents alone. So what has been rounded once can be
brought under one scale for a whole matrix without being rounded again, which products over rows need; only numbers
28,000 times smaller than the largest lose bits by it. A scale for each tensor would have to be known before the first
number is written: by another pass, or from earlier steps, which a checkpoint would have to hold.

Shapes: m rows, k their width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.parts.programs import runs_our_own

NARROW = torch.float8_e4m3fn  # a sign, 4 bits of exponent, 3 of mantissa; at most 448


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """(x over powers of two, in 8 bits [m k], row behind row; these powers [m 1] in float32)"""
    if runs_our_own(x):
        from qkv.train.float8 import rounding_triton  # Triton comes with torch's builds for GPUs only

        return rounding_triton.rounded(x)
    wide = x.detach().contiguous().float()
    inverse, scale = powers(wide.abs().amax(-1, keepdim=True))
    return (wide * inverse).to(NARROW), scale


def both_ways(x: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """x times one number, in 8 bits: (by rows [m k]; by columns [k m])"""
    if runs_our_own(x):
        from qkv.train.float8 import rounding_triton

        return rounding_triton.activated(x, inverse, "")
    narrow = (x.detach().float() * inverse).to(NARROW)
    return narrow, narrow.t().contiguous()


def rounded_side_by_side(parts: Sequence[Tensor], others: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two or three matrices as if they were one: (in 8 bits [m k]; scales of rows [m 1]; these times `others` [m 1];
    the largest of those)
    """
    if runs_our_own(others):
        from qkv.train.float8 import rounding_triton

        return rounding_triton.rounded_side_by_side(parts, others)
    narrow, scales = rounded(torch.cat(list(parts), -1))
    both = scales * others
    return narrow, scales, both, both.amax()


def powers(largest: Tensor) -> tuple[Tensor, Tensor]:
    """(1 over the powers of two that bring numbers up to these under 448; these powers)"""
    # 448 is 1.75 · 2⁸: a mantissa above 1.75 takes the next power. All of it by bits, where nothing is approximate. The
    # least power is 2⁻⁵⁸, so that the product of two stays a normal number. (Numbers with a name would be inputs of
    # compiled code, which torch cannot share between several of these.)
    power = (((largest.view(torch.int32) + 0x1FFFFF) & 0x7F800000) - (8 << 23)).clamp(min=(127 - 58) << 23)
    # A number that is not finite makes its row so: the update is skipped for it. (`where` would copy a number to the
    # device, which cannot be recorded.)
    return (0x7F000000 - power).view(torch.float32), power.view(torch.float32) + (largest - largest)


def turned(
    narrow: Tensor, factors: Tensor | None = None, top: Tensor | None = None, sums_by: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """(The same matrix with the numbers of a column side by side [k m]; sums over rows [k] in float32)

    With factors [m 1], powers of two, each row is taken times its own over `top`, the largest of them. Sums are asked
    for by the scales [m 1] of the rows, and only where there are factors.
    """
    if runs_our_own(narrow):
        from qkv.train.float8 import rounding_triton

        return rounding_triton.turned(narrow, factors, top, sums_by)
    if factors is None or top is None:
        return narrow.t().contiguous(), None
    wide = narrow.float()
    sums = None if sums_by is None else (wide * sums_by).sum(0)
    return (wide * (factors / top)).to(NARROW).t().contiguous(), sums
