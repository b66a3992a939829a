"""A stack of blocks, with what belongs to all of them: a shared position bias and the final norm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor, nn

from qkv.parts.context import Context


class Stack(nn.Module):
    """x → bias for all blocks → block after block → final norm and dropout, where there are any.

    With `repeats` the same blocks run again and again: depth without parameters [lan2020 §3.1].
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        norm: nn.Module | None = None,
        bias: nn.Module | None = None,
        dropout: float = 0.0,
        repeats: int = 1,
    ) -> None:
        super().__init__()
        self.repeats = repeats
        self.blocks, self.norm, self.bias = nn.ModuleList(blocks), norm, bias
        self.dropout = nn.Dropout(dropout)  # after the norm, as in T5 [raffel2020 §2.1]

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if self.bias is not None:
            keys = ctx.tokens if ctx.cache is None else ctx.cache.keys(ctx.tokens)
            ctx = replace(ctx, bias=self.bias(ctx.tokens, keys))
        for _ in range(self.repeats):
            for block in self.blocks:
                x = block(x, ctx)
        if self.norm is not None:
            x = self.norm(x, ctx)
        return self.dropout(x)
