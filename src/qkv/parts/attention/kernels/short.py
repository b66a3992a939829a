"""Attention of short rows: no tile is half empty. [dao2022 §3.1]

What it saves is tiles: the vendors' kernels take 128 queries and 128 keys at a time on a GPU, so that a picture of 197
patches costs them as much as 256.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.parts.attention.kernels import short_cpu
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.learned import (
    NARROW,
    attend_learning,
    padding_of,
    suits_short_learning,
    suits_warpgroups,
)
from qkv.parts.attention.kernels.refusals import refuse_recording
from qkv.parts.attention.kernels.short_cpu import is_known
from qkv.parts.attention.visibility import Mask
from qkv.parts.programs import runs_our_own

# Keys whose scores stay in registers: 64 queries see them all at once.
MOST = 272
MOST_PADDED = 224  # beside what tells that some of them are padding
MOST_WIDE = 128  # of heads of other widths than these, up to the widest
WIDTHS, WIDEST = (16, 32, 64), 128
ENOUGH = 1 << 20  # scores from which on a GPU takes longer than the host that launches a program


def short(
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
    """Same meaning as `exact`. What the programs are not made for, `fused` computes."""
    refuse_recording("short", record)
    alike = v.dtype == q.dtype and v.shape[3] == q.shape[3]
    if bias is not None or dropout or not alike or not suits_short(q, k, mask):
        return fused(q, k, v, mask, bias, scale=scale, dropout=dropout)
    if mask is not None:
        mask.must_fit(q, k)
    causal = mask is not None and mask.flag == "causal"
    if torch.is_grad_enabled():
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return attend_learning(*((q, k, v, mask, scale) if scale > 0 else (q * scale, k, v, mask, 1.0)))
    if q.device.type == "cpu":
        return short_cpu.attend_rows(q, k, v, padding_of(mask), causal=causal, scale=scale)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if scale > 0 and not causal and suits_warpgroups(q, k, v, padding_of(mask)):
        from qkv.parts.attention.kernels import short_cuda

        return short_cuda.attend(q, k, v, scale=scale)
    from qkv.parts.attention.kernels import short_triton  # Triton comes with torch's builds for GPUs only

    return short_triton.attend_rows(q, k, v, padding_of(mask), causal=causal, scale=scale)


def suits_short(q: Tensor, k: Tensor, mask: Mask | None) -> bool:
    """Whether programs take these, and pay. Only padding or the future may be hidden."""
    if torch.is_grad_enabled():
        suits = k.shape[1] == q.shape[1] and suits_short_learning(q, q.shape, k.shape[2], mask)
        return suits and q.dtype == k.dtype and q.dtype in NARROW
    if not runs_our_own(q):
        return short_cpu.suits(q, k) and is_known(mask)
    if q.dtype not in NARROW:
        return False
    (b, h, queries, width), keys = q.shape, k.shape[2]
    if k.dtype != q.dtype or width > WIDEST or b * h * queries * keys < ENOUGH:
        return False
    most = MOST_WIDE if width not in WIDTHS else MOST if padding_of(mask) is None else MOST_PADDED
    return is_known(mask) and keys <= most
