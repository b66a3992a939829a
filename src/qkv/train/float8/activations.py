"""Activations and their gradients, rounded to 8 bits by scales that are known beforehand.

So each number is read once and written twice, by rows and by columns, as the products want it that come next.

Shapes: m rows, n hidden units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.parts.feedforward import find_activation
from qkv.parts.programs import runs_our_own
from qkv.train.float8.rows import NARROW

STEEPEST = 1.13  # no slope of these activations is more, and none is further from 0 than what it is taken of


def activated(z: Tensor, inverse: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """h = activation(z), each row times its own number: (by rows [m n], by columns [n m]). z [m n], inverse [m 1]"""
    if runs_our_own(z):
        from qkv.train.float8 import rounding_triton  # Triton comes with torch's builds for GPUs only

        return rounding_triton.activated(z, inverse, name)
    narrow = (find_activation(name)(z.float()) * inverse).to(NARROW)
    return narrow, narrow.t().contiguous()


def sloped(
    above: Tensor, z: Tensor, inverse: Tensor, factors: Tensor, top: Tensor, sums_by: Tensor, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient dz of z by that of h: (by rows, each times its inverse [m n]; by columns, each row times its factor
    over `top` [n m]; summed over rows, each times its own of `sums_by` [n] in float32). above, z [m n], top a power of
    two, the others [m 1]
    """
    if runs_our_own(z):
        from qkv.train.float8 import rounding_triton

        return rounding_triton.sloped(above, z, inverse, factors, top, sums_by, name)
    wide = _times_slope(above.float(), z.float(), name)
    return (wide * inverse).to(NARROW), (wide * (factors / top)).to(NARROW).t().contiguous(), (wide * sums_by).sum(0)


def _times_slope(above: Tensor, z: Tensor, name: str) -> Tensor:
    """By torch's operators for the way back: inside an operator of ours it keeps no track of gradients itself."""
    if name == "gelu_quick":
        share = (1.702 * z).sigmoid()
        return above * (share + 1.702 * z * share * (1 - share))
    if name == "relu":
        return above * (z > 0)
    if name == "silu":
        return torch.ops.aten.silu_backward(above, z)
    return torch.ops.aten.gelu_backward(above, z, approximate="tanh" if name == "gelu_tanh" else "none")
