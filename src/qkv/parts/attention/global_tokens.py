"""Self-attention in which a few marked tokens read the whole row, by projections of their own. [beltagy2020 §3.1]

Shapes: b rows, s slots, g marked tokens, h heads, d width of a head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention, HeadOptions, heads_of
from qkv.parts.attention.visibility import Everything, Marked, Mask, NotPadding, Rule, SameDocument, Tokens
from qkv.parts.attention.whole_rows import rules_of
from qkv.parts.context import Context, Ledger
from qkv.parts.linear import JoinedLinear


class GlobalAttention(Attention):
    """Tokens see what `near` shows them and the marked ones; those see everyone, and are read by everyone."""

    depends_on = Attention.depends_on.also("of_marked")

    heeds_marks = True

    def __init__(self, width: int, heads: int, near: Rule, **options: Unpack[HeadOptions]) -> None:
        options["visibility"] = near | Marked()
        super().__init__(width, heads, **options)
        sizes = {"query": self.query_size, "key": self.key_size, "value": self.value_size}
        self.of_marked = JoinedLinear(width, sizes, bias=self.biases)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        tokens = ctx.tokens.counted()
        if not tokens.most_marked:
            return super().forward(x, ctx)
        if ctx.cache is not None or ctx.bias is not None:
            raise QkvError("Marked tokens read whole rows, by content alone: give no cache and no bias on scores.")
        if any(not isinstance(rule, Everything | NotPadding | SameDocument) for rule in rules_of(ctx.visibility)):
            raise QkvError(f"Marked tokens see all of their text: the context cannot narrow that to {ctx.visibility}.")
        kept = None  # the weights of both, where a person asked for them
        if ctx.ledger is not None and ctx.ledger.wants("weights"):
            kept = Ledger(self, {"weights"})
        quiet = replace(ctx, ledger=kept)
        slots, real = (each.expand(len(x), -1) for each in tokens.marked_slots())  # [b g] each
        y = super().forward(x, quiet)
        everywhere = self._of_marked(x, slots, quiet)
        if ctx.ledger is not None and kept is not None:
            near, far = kept.entries["/weights"]  # [b h s s] [b h g s]
            ctx.ledger.write(
                self, "weights", _put(near.transpose(1, 2), far.transpose(1, 2), slots, real).transpose(1, 2)
            )
        return _put(y, everywhere, slots, real)

    def _of_marked(self, x: Tensor, slots: Tensor, ctx: Context) -> Tensor:
        """What the tokens in these slots [b g] read. [b g width]"""
        q, k, v = self.of_marked(x)
        q = q.gather(1, _over(slots, q))
        q, k, v = heads_of(q, self.heads), heads_of(k, self.key_value_heads), heads_of(v, self.key_value_heads)
        documents = None if ctx.tokens.documents is None else ctx.tokens.documents.gather(1, slots)
        mask = Mask(ctx.visibility, Tokens(slots.shape[1], documents=documents), ctx.tokens, x.device)
        return self.attend(q, k, v, mask, None, ctx)


def _put(y: Tensor, those: Tensor, slots: Tensor, real: Tensor) -> Tensor:
    """y [b s …] with others [b g …] in these slots [b g], but for filling."""
    where = _over(slots, y)
    wanted = real.view(*real.shape, *(1,) * (y.ndim - 2))
    return y.scatter(1, where, torch.where(wanted, those.to(y.dtype), y.gather(1, where)))


def _over(slots: Tensor, x: Tensor) -> Tensor:
    """slots [b g] for all that x [b s …] has in one. [b g …]"""
    return slots.view(*slots.shape, *(1,) * (x.ndim - 2)).expand(*slots.shape, *x.shape[2:])
