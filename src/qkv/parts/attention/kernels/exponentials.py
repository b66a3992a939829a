"""exp(x wᵀ), each row made smaller by its largest entry, so that none overflows.

Shapes: d width of x, m rows of w.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def exponentials(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """x [… d], w [m d] → exp(x wᵀ - largest) [… m] as x is, and `largest` [… 1] in float32 at least.

    w is not learned. Exponents are never rounded to bfloat16, whose steps are too coarse for them; where x is of that
    precision, so is w.
    """
    if x.is_cuda and x.dtype == torch.bfloat16:
        features, largest = _Narrow.apply(x, w.to(x.dtype))
        return features, largest
    exponents = x @ w.to(x.dtype).T
    largest = exponents.detach().amax(-1, keepdim=True)
    return (exponents - largest).exp(), largest


class _Narrow(torch.autograd.Function):
    """The same in bfloat16 on a GPU, with exponents in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        exponents = torch.mm(x.flatten(0, -2), w.T, out_dtype=torch.float32)
        largest = exponents.amax(-1, keepdim=True)
        features = exponents.sub_(largest).exp_().to(x.dtype).unflatten(0, x.shape[:-1])
        ctx.save_for_backward(features, w)
        largest = largest.unflatten(0, x.shape[:-1])
        ctx.mark_non_differentiable(largest)
        return features, largest

    @staticmethod
    def backward(ctx: Any, pull: Tensor, _: Tensor) -> tuple[Tensor, None]:
        features, w = ctx.saved_tensors
        return (pull * features) @ w, None
