"""exp(x wᵀ), each row made smaller by its largest entry, so that none overflows.

Shapes: d width of x, m rows of w.
"""

from __future__ import annotations

from torch import Tensor

from qkv.parts.precision import widened


def exponentials(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """x [… d], w [m d] → exp(x wᵀ - largest) [… m] as x is, and `largest` [… 1] in float32 at least.

    w is not learned. Exponents are never rounded to bfloat16, whose steps are too coarse for them; where x is of that
    precision, so is w.
    """
    exponents = widened(x) @ widened(w.to(x.dtype)).T
    largest = exponents.detach().amax(-1, keepdim=True)
    return (exponents - largest).exp().to(x.dtype), largest
