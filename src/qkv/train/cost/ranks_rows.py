"""Rows that ranks share, without numbers: a rank reads its stretches, and gets keys and values of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from qkv.parts.context import Context
from qkv.train.cost.ranks_links import GATHER, KEYS_BACK, KEYS_FORWARD, SCATTER
from qkv.train.cost.ranks_notes import Notes
from qkv.train.parallel.context import SharedRows
from qkv.train.parallel.gathered_keys import GatheredKeys
from qkv.train.parallel.layout import Layout
from qkv.train.parallel.share_of_row import ShareOfRow


class RowsOfRank(SharedRows):
    """Stands for the ranks of a mesh."""

    def __init__(self, layout: Layout, notes: Notes) -> None:
        self.share = _WithNumbers(0, layout.context)
        self.layout, self.notes = layout, notes

    def cut(self, ctx: Context, device: Any) -> tuple[Context, Tensor]:
        self.mesh: Any = None
        own, slots = super().cut(ctx, device)
        assert isinstance(own.cache, GatheredKeys)
        return replace(own, cache=_AsLarge(own.cache, self)), slots


class _WithNumbers(ShareOfRow):
    """On a CPU parts look at ids, so those of a rank's slots must be found there."""

    def slots(self, row: int, device: torch.device | str = "cpu") -> Tensor:
        if torch.device(device).type != "cpu":
            return super().slots(row, device)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return super().slots(row)


class _AsLarge(GatheredKeys):
    def __init__(self, like: GatheredKeys, rows: RowsOfRank) -> None:
        super().__init__(like.row, like.share, like.mesh)
        self.rows = rows

    def extend(self, owner: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat((k, v), -1)[None]
        gathered: Tensor = _Gathered.apply(both, self.share.ranks)
        ranks, apart, notes = self.share.ranks, self.rows.layout.tensor, self.rows.notes
        notes.now((KEYS_FORWARD, KEYS_BACK), GATHER, ranks, apart, gathered)
        notes.on_the_way_back(KEYS_BACK, SCATTER, ranks, apart, gathered)
        keys, values = gathered.split((k.shape[-1], v.shape[-1]), -1)
        return self.share.in_row_order(keys, self.row.size), self.share.in_row_order(values, self.row.size)


class _Gathered(torch.autograd.Function):
    """[1 b g s d] → [ranks b g s d]"""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: int) -> Tensor:
        return own.new_empty(ranks, *own.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.new_empty(1, *gradient.shape[1:]), None
