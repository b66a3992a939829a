"""Rotary positions as tables, for programs that turn one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.parts.position import Rotary, rotate_halves


def turns_of(rotary: Rotary | None, positions: int, width: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """cos and sin of each position and place of a head, and the place that a place is turned with. [p d] [p d] [d]

    y[i] = x[i] · cos[i] + x[partner[i]] · sin[i]; a place that is not turned has cos 1 and sin 0.
    """
    if rotary is None:
        return like, like, like
    pairs, place = len(rotary.rates), torch.arange(width, device=like.device)
    angles = torch.arange(positions, device=like.device)[:, None].to(rotary.rates.dtype) * rotary.rates.to(like.device)
    if rotary.pairing is rotate_halves:
        first, pair = place < pairs, place % pairs
        partner = torch.where(first, place + pairs, place - pairs)
    else:
        first, pair = place % 2 == 0, place // 2
        partner = torch.where(first, place + 1, place - 1)
    turned = place < 2 * pairs
    angles = angles[:, pair.clamp(max=pairs - 1)]  # [p d]
    cos = torch.where(turned, angles.cos(), 1.0)
    sin = torch.where(turned, torch.where(first, -angles.sin(), angles.sin()), 0.0)
    return cos.to(like.dtype), sin.to(like.dtype), torch.where(turned, partner, place).to(torch.int32)
