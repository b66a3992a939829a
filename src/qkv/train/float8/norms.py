"""Sums and norms of a stream whose products are in 8 bits: what they make is rounded where it is made.

What a norm makes is bounded by its own weights, so one power of two serves all rows and is known beforehand. The
gradient that goes to the product before it has a power for each row, and a bound for the product after that.

Shapes: m rows, d width of the stream.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.parts.sum_norm import made_back, made_there
from qkv.train.float8.rows import NARROW, powers


def sum_norm_rounded(
    x: Tensor, added: Tensor | None, bias: Tensor | None, gain: Tensor, shift: Tensor | None, epsilon: float,
    rms: bool, inverse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `sum_norm.made_there`, the norm times one number in 8 bits."""
    if not x.is_cuda:
        total, y, statistics = made_there(x, added, bias, gain, shift, epsilon, rms, x.dtype)
        return total, (y * inverse).to(NARROW), statistics
    from qkv.parts import sum_norm_triton  # Triton comes with torch's builds for GPUs only

    total, y, statistics = torch.empty_like(x), torch.empty_like(x, dtype=NARROW), x.new_empty(2, len(x))
    sum_norm_triton.sum_norm(x, added, bias, gain, shift, epsilon, rms, total, y, statistics, inverse)
    return total, y, statistics


def sum_norm_rounded_back(
    of_total: Tensor | None, of_y: Tensor, factors: Tensor | None, total: Tensor, statistics: Tensor, gain: Tensor,
    rms: bool, reach: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As `sum_norm.made_back`, each row of of_y times its factor. What was added has a gradient in 8 bits.

    Then come the scales of its rows [3 m 1]: their powers, those of bounds of their products with columns of length
    `reach`, and the first over the second. Last are the largest of the first and of the second [2].
    """
    if not total.is_cuda:
        of_y = of_y if factors is None else of_y * factors
        of_x, wide, sums = made_back(of_total, of_y, total, statistics, gain, rms, total.dtype)
        inverse, power = powers(wide.abs().amax(-1, keepdim=True))
        over, bound = powers(wide.square().sum(-1, keepdim=True).sqrt() * reach)
        tops = torch.stack([power.amax(), bound.amax()])
        return of_x, (wide * inverse).to(NARROW), sums, torch.stack([power, bound, power * over]), tops
    from qkv.parts import sum_norm_triton

    of_x, narrow = torch.empty_like(total), torch.empty_like(total, dtype=NARROW)
    sums, scales = gain.new_empty(3, total.shape[1]), gain.new_empty(3, len(total), 1)
    tops = gain.new_empty(2, 4)  # each begins where programs like it
    of_total = None if of_total is None else of_total.contiguous()
    sum_norm_triton.sum_norm_back(
        of_total, of_y.contiguous(), total, statistics, gain, rms, of_x, narrow, sums,
        sum_norm_triton.ROUNDED, factors=factors, reach=reach, scales=scales, tops=tops,
    )  # fmt: skip
    return of_x, narrow, sums, scales, tops[:, 0]


def sum_norm_times_back(
    of_total: Tensor | None, of_y: Tensor, factors: Tensor, total: Tensor, statistics: Tensor, gain: Tensor, rms: bool
) -> tuple[Tensor, Tensor]:
    """As `sum_norm.made_back` where nothing was added, each row of of_y times its factor: of_x, and sums [3 d]."""
    if not total.is_cuda:
        of_x, _, sums = made_back(of_total, of_y * factors, total, statistics, gain, rms, None)
        return of_x, sums
    from qkv.parts import sum_norm_triton

    of_x, sums = torch.empty_like(total), gain.new_empty(3, total.shape[1])
    of_total = None if of_total is None else of_total.contiguous()
    sum_norm_triton.sum_norm_back(
        of_total, of_y.contiguous(), total, statistics, gain, rms, of_x, None, sums, factors=factors
    )
    return of_x, sums
