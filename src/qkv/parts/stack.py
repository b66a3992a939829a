"""A stack of blocks, with what belongs to all of them: a shared position bias and the final norm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from qkv.parts.context import Context
from qkv.parts.in_place import in_place, is_packed, only_answers, pays
from qkv.parts.spec import Depends
from qkv.parts.tried import tried_plan


class Stack(nn.Module):
    """x → bias for all blocks → block after block → final norm and dropout, where there are any.

    Where only the answer is asked for, the stream passes known blocks in place (`in_place.py`), where that pays;
    elsewhere the last one does, if of what leaves the stack the context says that only a few slots are wanted.

    With an `order` blocks run by their numbers, some again and again: depth without parameters [lan2020 §3.1].
    """

    depends_on = Depends("blocks", "order", "dropout", norm=None, bias=None, in_eight_bits=None)

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        norm: nn.Module | None = None,
        bias: nn.Module | None = None,
        dropout: float = 0.0,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.blocks, self.norm, self.bias = nn.ModuleList(blocks), norm, bias
        self.order = range(len(self.blocks)) if order is None else order
        self.dropout = nn.Dropout(dropout)  # after the norm, as in T5 [raffel2020 §2.1]

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        ctx = self.with_bias(ctx)
        blocks = [self.blocks[number] for number in self.order]
        if only_answers(x, ctx):
            wanted = None if self._forward_hooks else ctx.wanted  # who watches sees all slots
            may = pays(x) or (len(blocks) > 0 and is_packed(blocks[0]))
            if may and (plan := tried_plan(blocks, self.norm, x, ctx)) is not None and (x.is_cuda or plan.own):
                return self.dropout(in_place(plan, self.norm, x, ctx, wanted))
            if wanted is not None and (plan := tried_plan(blocks[-1:], self.norm, x, ctx)) is not None:
                for block in blocks[:-1]:
                    x = block(x, ctx)
                return self.dropout(in_place(plan, self.norm, x, ctx, wanted))
        for block in blocks:
            x = block(x, ctx)
        if self.norm is not None:
            x = self.norm(x, ctx)
        return self.dropout(x)

    def after_each(self, x: Tensor, ctx: Context) -> list[Tensor]:
        """What would leave the stack if it ended after each of its blocks: for a loss on every layer. [carion2020 §3.2]

        The norm falls on what leaves only, never on what the next block reads.
        """
        ctx, found = self.with_bias(ctx), []
        for number in self.order:
            x = self.blocks[number](x, ctx)
            found.append(self.dropout(x if self.norm is None else self.norm(x, ctx)))
        return found

    def with_bias(self, ctx: Context) -> Context:
        """The context with the bias that all blocks share."""
        return ctx if self.bias is None else replace(ctx, bias=self.bias_of(ctx))

    def bias_of(self, ctx: Context) -> Tensor | None:
        """What is added to every score: the context's own where the stack has none. [1 h q k]"""
        if self.bias is None:
            return ctx.bias
        keys = ctx.tokens if ctx.cache is None else ctx.cache.keys(ctx.tokens)
        bias: Tensor = self.bias(ctx.tokens, keys)
        return bias
