"""Attention of long rows that see everything or the past, on Hopper GPUs. [dao2022 alg.1]

The vendors' kernels leave the tensor cores idle while they make weights of scores; this one lets groups of warps take
turns. [shah2024 alg.1]
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from qkv.parts import cuda
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.learned import NARROW, attend_learning, suits_long_learning
from qkv.parts.attention.kernels.refusals import refuse_recording
from qkv.parts.attention.visibility import Mask
from qkv.parts.programs import has_copy_engine, runs_operators, runs_our_own

WIDTHS = (64, 128)
LEAST = 256  # queries and keys
ENOUGH = 1 << 25  # scores from which on every multiprocessor has something to do


def long(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    record: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Same meaning as `exact`. What the program is not made for, `fused` computes."""
    refuse_recording("long", record)
    alike = v.dtype == q.dtype and v.shape[3] == q.shape[3] and _learns(v) <= _learns(q, k)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    if bias is not None or dropout or not alike or scale <= 0 or not suits_long(q, k, mask):
        return fused(q, k, v, mask, bias, scale=scale, dropout=dropout)
    if mask is not None:
        mask.must_fit(q, k)
    if _learns(q, k):
        return attend_learning(q, k, v, mask, scale)
    from qkv.parts.attention.kernels import long_cuda

    return long_cuda.attend(q, k, v, causal=mask is not None and mask.flag == "causal", scale=scale)


def suits_long(q: Tensor, k: Tensor, mask: Mask | None) -> bool:
    """Whether programs take these, and pay."""
    if runs_operators(q) and _learns(q, k):
        alike = q.dtype in NARROW and k.dtype == q.dtype and k.shape[1] == q.shape[1]
        return alike and suits_long_learning(q, q.shape, k.shape[2], mask)
    if not runs_our_own(q) or _learns(q, k):
        return False
    if q.dtype not in NARROW or k.dtype != q.dtype or q.shape[3] not in WIDTHS:
        return False
    if mask is not None and mask.flag is None:
        return False
    enough = min(q.shape[2], k.shape[2]) >= LEAST and math.prod(q.shape[:3]) * k.shape[2] >= ENOUGH
    return enough and has_copy_engine(q.device) and cuda.has_bindings()


def _learns(*given: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in given)
