"""Dropout on attention weights that are never kept: which of them stay follows from a seed, forwards and backwards.

Every weight has a number, its query's times the keys plus its key's. Mixed with two numbers of its row and head it
gives 32 bits that look like chance, by products and shifts after which any bit of the number changes half of them. A
generator as torch has one would keep a GPU as busy as all the rest of an attention.

Shapes: b rows, h query heads, q queries, k keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Lot:
    """What decides: a seed [1], and the share of weights that go."""

    seed: Tensor
    share: float

    @property
    def dropped(self) -> int:
        """Of 2³¹."""
        return round(self.share * 2**31)

    @property
    def scale(self) -> float:
        """By which weights that stay grow, so that a row keeps its sum on average."""
        return 1 / (1 - self.share)

    def factor(self, rows: slice, heads: int, query: slice, key: slice, keys: int) -> Tensor:
        """By what weights of a tile are multiplied: 0, or the scale. [b h q k]"""
        device = self.seed.device
        line = torch.arange(rows.start * heads, rows.stop * heads, device=device).view(-1, heads, 1, 1)
        first = _mixed((self.seed + line * 0x9E3779B9) & WORD)
        second = _mixed((first + 0x85EBCA6B) & WORD)
        numbers = torch.arange(query.start, query.stop, device=device)[:, None] * keys
        x = ((numbers + torch.arange(key.start, min(key.stop, keys), device=device)) & WORD) ^ first  # [b h q k]
        x = _mixed(x, second)
        return (x >> 1 >= self.dropped) * self.scale


def _mixed(x: Tensor, added: Tensor | int = 0) -> Tensor:
    """In whole numbers of 32 bits. Products are taken in halves, for torch has no such numbers without a sign."""
    x = x ^ (x >> 16)
    x = (_times(x, 0x7FEB352D) + added) & WORD
    x = x ^ (x >> 15)
    x = _times(x, 0x846CA68B)
    return x ^ (x >> 16)


def _times(x: Tensor, y: int) -> Tensor:
    return ((x & 0xFFFF) * y + (((x >> 16) * y & 0xFFFF) << 16)) & WORD
