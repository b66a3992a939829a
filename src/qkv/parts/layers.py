"""Stacks whose blocks matter one by one: left out at random while learning, or all of them heard in the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.parts.context import Context
from qkv.parts.stack import Stack


class DroppedStack(Stack):
    """A stack that leaves out each block with the chance `layer_dropout` while learning. [fan2020 §3.1]

    A block that is left out is computed all the same, so that the graph is the same in every step.
    """

    depends_on = Stack.depends_on.also(layer_dropout=0.0)

    def __init__(self, blocks: Iterable[nn.Module], norm: nn.Module | None = None, layer_dropout: float = 0.0) -> None:
        super().__init__(blocks, norm)
        self.layer_dropout = layer_dropout

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if not self.training:
            return super().forward(x, ctx)
        for block in self.blocks:
            x = self.run(block, x, ctx)
        return x if self.norm is None else self.norm(x, ctx)

    def run(self, block: nn.Module, x: Tensor, ctx: Context) -> Tensor:
        y: Tensor = block(x, ctx)
        if not self.training or self.layer_dropout == 0.0:
            return y
        return torch.where(torch.rand((), device=x.device) < self.layer_dropout, x, y)


class SummedStack(DroppedStack):
    """The mean of what went into the first block and of what came out of each, weighted as learned. [yang2021 §3]

    The last norm falls on what no one hears, and is kept for those who put on another head.
    """

    depends_on = DroppedStack.depends_on.also("shares")

    def __init__(self, blocks: Iterable[nn.Module], norm: nn.Module | None = None, **options: Any) -> None:
        super().__init__(blocks, norm, **options)
        self.shares = nn.Parameter(torch.zeros(len(self.blocks) + 1))  # before their softmax

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        shares = self.shares.softmax(0)
        total = shares[0] * x
        for share, block in zip(shares[1:], self.blocks, strict=True):
            x = self.run(block, x, ctx)
            heard = self.last(x, ctx) if block is self.blocks[-1] else x
            total = total + share * heard
        return total

    def last(self, x: Tensor, ctx: Context) -> Tensor:
        """What the last block gives, as it is heard."""
        return x


class NormedSummedStack(SummedStack):
    """The same, but of what the last block gives, what is heard has passed the last norm. [yang2021 §3]"""

    depends_on = SummedStack.depends_on

    def last(self, x: Tensor, ctx: Context) -> Tensor:
        assert self.norm is not None
        normed: Tensor = self.norm(x, ctx)
        return normed
