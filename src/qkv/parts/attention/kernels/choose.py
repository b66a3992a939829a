"""Which kernel computes an attention, when nobody says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from qkv.parts.attention.bands import band_of
from qkv.parts.attention.in_line import seen_in_line
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.in_line import in_line
from qkv.parts.attention.kernels.long import long, suits_long
from qkv.parts.attention.kernels.short import short, suits_short
from qkv.parts.attention.visibility import Mask
from qkv.parts.programs import is_served

SHORT = 512  # keys up to which scores held in memory cost less than learning a bias without them
BIAS_IN_TILES = 512  # keys from which on flash learns a bias faster than fused
MANY = 1 << 26  # scores from which on that is worth its launches, which cost a host more than those of fused
LONG = 512  # queries and keys from which on hidden tiles are worth skipping
LARGE = 1 << 28  # scores, hidden or not, from which on a GPU takes longer than the host that tells it what to do


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


def choose_kernel(
    q: Tensor, k: Tensor, mask: Mask | None, dropout: float, record: bool, bias: Tensor | None = None
) -> Kernel:
    """exact where weights are recorded; flash for long masked rows on a GPU; fused for all else.

    Documents that stand in line have a kernel of their own, and so have short rows, and long ones that are only read.
    fused are the vendors' kernels, which are faster where nothing is to be skipped and take a mask as a whole table.
    None of them is good at learning a bias: its gradient is as large as all scores together, so on short rows, where
    scores fit into memory, exact costs less if a compiler makes one pass of all that lies between its two products.
    Where answers have to repeat bit for bit (`torch.use_deterministic_algorithms`) only those are taken that do.
    """
    if record:
        return exact
    repeats = torch.are_deterministic_algorithms_enabled()
    if seen_in_line(mask) and bias is None and not dropout and not (repeats and q.requires_grad):
        return in_line
    if bias is None and not dropout and suits_short(q, k, mask):
        return short
    if bias is None and not dropout and suits_long(q, k, mask):
        return long
    learns_bias = bias is not None and bias.requires_grad
    scores = math.prod(q.shape[:3]) * k.shape[2]
    if learns_bias and is_served(q) and k.shape[2] >= BIAS_IN_TILES and scores >= MANY and _is_band(mask):
        return _flash()
    if learns_bias and q.is_cuda and torch.compiler.is_compiling() and k.shape[2] <= SHORT:
        return exact
    masked = mask is not None and mask.flag is None
    if q.is_cuda and repeats and (masked or bias is not None):
        # Vendors' kernels that take a table add gradients as they come, and so does ours to a bias in patterns.
        return exact if (learns_bias and not _is_band(mask)) or not is_served(q) else _flash()
    pays = min(q.shape[2], k.shape[2]) >= LONG
    return _flash() if masked and is_served(q) and not dropout and pays and scores >= LARGE else fused


def _is_band(mask: Mask | None) -> bool:
    return mask is None or band_of(mask) is not None


def _flash() -> Kernel:
    from qkv.parts.attention.kernels.flash import flash  # whose operators nobody waits for where there is no GPU

    return flash
