"""exp(x wᵀ), each row made smaller by its largest entry, so that none overflows.

Shapes: d width of x, m rows of w.
"""

from __future__ import annotations

import torch
from torch import Tensor


def exponentials(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """x [… d], w [m d] → exp(x wᵀ - largest) [… m] as x is, and `largest` [… 1] in float32 at least.

    w is not learned. Exponents are never rounded to bfloat16, whose steps are too coarse for them; where x is of that
    precision, so is w.
    """
    if _on_gpu(x):
        from qkv.parts.attention.kernels.exponentials_triton import Exponentials

        features, largest = Exponentials.apply(x, w.to(x.dtype))
        return features, largest
    exponents = x @ w.to(x.dtype).T
    largest = exponents.detach().amax(-1, keepdim=True)
    return (exponents - largest).exp(), largest


def _on_gpu(x: Tensor) -> bool:
    """Where programs for a GPU run, and exponents need not be finer than what they are made of."""
    return x.is_cuda and x.dtype == torch.bfloat16
