"""BigBird's attention: blocks of tokens see their neighbours, the first and the last block, and some at random.
[zaheer2020 §2]

Shapes: b rows, s slots, n blocks of a row, k keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from qkv.data.kept_tensors import keeping_tensors
from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention, HeadOptions, heads_of
from qkv.parts.attention.visibility import Everything, Rule, Sight, Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.recording import hold


@dataclass(frozen=True)
class BlocksOfRow(Rule):
    """In a row of `size` tokens: the own block, those beside it, the first and the last, which see everyone too.

    Keys past the end of the row are seen by all blocks but the first and the last.
    """

    block: int
    size: int

    def sees(self, query: Sight, key: Sight) -> Tensor:
        mine, theirs, last = query.index // self.block, key.index // self.block, (self.size - 1) // self.block
        inner, of_row = (mine > 0) & (mine < last), key.index < self.size
        near = ((mine - theirs).abs() <= 1) | (theirs == 0) | (theirs == last) | ~inner
        return (near & of_row) | (inner & ~of_row)


@dataclass(frozen=True)
class RandomBlocks(Rule):
    """In a row of `size` tokens, each block sees `count` others drawn at random, the same for the same `seed`."""

    block: int
    size: int
    count: int
    seed: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        # Drawn before the rule is asked, which may be inside a kernel, where nothing can be drawn.
        blocks = -(-self.size // self.block)
        object.__setattr__(self, "drawn", hold(_drawn(blocks, self.count, self.seed, self.device)))

    drawn: ClassVar[Tensor]  # [n n], in truth of each rule; no part of its value, since the others decide it

    def sees(self, query: Sight, key: Sight) -> Tensor:
        return self.drawn[query.index // self.block, (key.index // self.block).clamp(max=len(self.drawn) - 1)]


@keeping_tensors
def _drawn(blocks: int, count: int, seed: int, device: str) -> Tensor:
    """Whom each block was given: none that it sees in any case. [n n]"""
    random = torch.Generator().manual_seed(seed)
    drawn = torch.zeros(blocks, blocks, dtype=torch.bool)
    for block in range(1, blocks - 1):
        others = [other for other in range(1, blocks - 1) if abs(other - block) > 1]
        drawn[block, [others[each] for each in torch.randperm(len(others), generator=random)[:count].tolist()]] = True
    return drawn.to(device)


class DrawnBlocks(Attention):
    """Attention between blocks of `block` tokens in rows that are long enough for it, between all tokens in others.

    Each block sees `randoms` others at random, the same for the same `seed`.
    """

    depends_on = Attention.depends_on.also("block", "randoms", "seed")

    def __init__(
        self, width: int, heads: int, *, block: int, randoms: int, seed: int, **options: Unpack[HeadOptions]
    ) -> None:
        super().__init__(width, heads, **options)
        if not isinstance(self.visibility, Everything):
            raise QkvError("Attention between blocks looks both ways: give it no further rule.")
        self.block, self.randoms, self.seed = block, randoms, seed

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if x.shape[1] <= (5 + 2 * self.randoms) * self.block:
            return super().forward(x, ctx)
        if ctx.cache is not None or ctx.bias is not None or ctx.position_vectors is not None:
            raise QkvError("Attention between blocks reads whole rows, by content alone: give no cache and no bias.")
        q, k, v = (heads_of(part, heads) for part, heads in zip(self.project(x), self._heads(), strict=True))
        return self._between(q, k, v, ctx)

    def _between(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> Tensor:
        size, device = q.shape[2], q.device
        rule = BlocksOfRow(self.block, size) | RandomBlocks(self.block, size, self.randoms, self.seed, str(device))
        return self.attend(q, k, v, ctx.mask(rule, ctx.tokens, ctx.tokens, device), None, ctx)

    def _heads(self) -> tuple[int, int, int]:
        return self.heads, self.key_value_heads, self.key_value_heads

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, blocks of {self.block}"


class BlockAttention(DrawnBlocks):
    """The same as published models have it, which see blocks at random in training only.

    DIFFERS [zaheer2020]: otherwise a block reads the first one so many times more instead: published models are known
    by the answers that they give so.
    """

    depends_on = DrawnBlocks.depends_on.also()

    def _between(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> Tensor:
        if self.training:
            return super()._between(q, k, v, ctx)
        k, v = (torch.cat((each, each[:, :, : self.block].repeat(1, 1, self.randoms, 1)), 2) for each in (k, v))
        rule = BlocksOfRow(self.block, q.shape[2])
        return self.attend(q, k, v, ctx.mask(rule, ctx.tokens, self._with_repeats(ctx.tokens), q.device), None, ctx)

    def _with_repeats(self, tokens: Tokens) -> Tokens:
        documents = tokens.documents
        if documents is not None:
            documents = torch.cat((documents, documents[:, : self.block].repeat(1, self.randoms)), 1)
        return Tokens(tokens.size + self.randoms * self.block, tokens.start, documents)

    def _record(self, ledger: Ledger, beams: int, weights: Tensor) -> None:
        """What was read of the first block again is part of what was read of it. weights [b h s k] → [b h s s]"""
        size = weights.shape[2]
        if weights.shape[3] > size:
            weights, again = weights[..., :size].clone(), weights[..., size:]
            weights[..., : self.block] += again.unflatten(-1, (self.randoms, self.block)).sum(-2)
        super()._record(ledger, beams, weights)
