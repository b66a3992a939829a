"""Which kernel computes an attention, when nobody says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import Mask

LONG = 2048  # keys from which on skipping hidden blocks outweighs what a vendor's kernel gains


class Kernel(Protocol):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
        record: Callable[[Tensor], None] | None = None,
    ) -> Tensor: ...


def choose_kernel(q: Tensor, k: Tensor, mask: Mask | None, dropout: float, record: bool) -> Kernel:
    """exact where weights are recorded; flash for long masked rows on a GPU; fused for all else.

    fused are the vendors' kernels, which are faster where nothing is to be skipped and take a mask as a whole table.
    """
    if record:
        return exact
    masked = mask is not None and mask.flag is None
    if masked and q.is_cuda and q.shape[2] >= LONG and k.shape[2] >= LONG and not dropout:
        return flash
    return fused
