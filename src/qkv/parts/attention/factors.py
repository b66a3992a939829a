"""Patterns that leave out slots, taken apart into factors that leave out none. [child2019 §4.2]

A query that sees every s-th key sees a whole row once tokens are laid out by their remainder of s: tokens 0, s, 2s, …
side by side, then 1, s + 1, …. So a stride becomes a look-ahead mask on short rows and a dilated window a window.
Summaries, the last tokens of every block, become a short row of keys of their own. What a query sees of each factor
is attended to by itself, and the answers are joined as a tiled softmax joins its tiles [dao2022 §3.1]: the cost is
that of the factors, n·(s + n/s) for n tokens, not that of a table with holes. Going back, each factor makes its
weights again from the sum over all of them, as a tile does.

Shapes: b rows, h heads, n tokens, d width, s remainders.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.parts.attention.tokens import Sight, Tokens
from qkv.parts.attention.visibility import (
    Causal,
    Either,
    Everything,
    Fixed,
    Mask,
    NotPadding,
    Rule,
    SameDocument,
    Strided,
    Window,
)
from qkv.parts.attention.whole_rows import rules_of

Answer = tuple[Tensor, Tensor]  # attention [b h n e], and the logarithm of each softmax's sum [b h n]: +∞ of nothing


@dataclass(frozen=True, eq=False)
class Factor:
    """A part of what is seen: `mask` is of tokens laid out by their remainder of `stride`, and of some keys alone."""

    mask: Mask
    stride: int = 1
    summaries: Summaries | None = None  # None: all keys

    def laid_out(self, x: Tensor, filling: float = 0.0) -> Tensor:
        """Tokens by their remainder: as rows of their own, or as heads, which a stream needs no copy for.

        [b h n d] → [b·s h n/s d] or [b s·h n/s d]; what fills up the last stride is `filling`.
        """
        if self.stride == 1:
            return x
        if x.shape[2] % self.stride:
            x = F.pad(x, (0, 0, 0, -x.shape[2] % self.stride), value=filling)
        x = x.transpose(1, 2).unflatten(1, (-1, self.stride))  # [b n/s s h d]
        if self.mask.key.documents is not None:
            return x.permute(0, 2, 3, 1, 4).flatten(0, 1)
        return x.flatten(2, 3).transpose(1, 2)

    def laid_back(self, x: Tensor, length: int) -> Tensor:
        """The inverse. [b h n d]"""
        if self.stride == 1:
            return x
        if self.mask.key.documents is not None:
            x = x.unflatten(0, (-1, self.stride)).transpose(1, 2)  # [b h s n/s d]
        else:
            x = x.unflatten(1, (self.stride, -1)).transpose(1, 2)  # [b h s n/s d]
        return x.transpose(2, 3).flatten(2, 3)[:, :, :length]

    def keys_of(self, x: Tensor) -> Tensor:
        """Keys or values, those that this factor sees."""
        return self.laid_out(x if self.summaries is None else self.summaries.of(x, 2))

    def back_to_keys(self, gradient: Tensor, length: int) -> Tensor:
        """Of all keys, from those that this factor sees. [b h n d]"""
        if self.summaries is not None:
            return self.summaries.spread(gradient, length)
        return self.laid_back(gradient, length)


@dataclass(frozen=True)
class Summaries(Rule):
    """Queries see the summaries of blocks that are not their own; keys are those summaries, one behind the other."""

    stride: int
    summary: int
    behind: bool  # whether only those of blocks before

    def sees(self, query: Sight, key: Sight) -> Tensor:
        mine, theirs = query.index // self.stride, key.index // self.summary
        return theirs < mine if self.behind else theirs != mine

    def of(self, x: Tensor, dim: int) -> Tensor:
        """The last `summary` of every block along a dimension; of a block that is cut off, what is there."""
        whole = x.shape[dim] // self.stride * self.stride
        blocks = x.narrow(dim, 0, whole).unflatten(dim, (-1, self.stride))
        found = blocks.narrow(dim + 1, self.stride - self.summary, self.summary).flatten(dim, dim + 1)
        start = whole + self.stride - self.summary
        return found if start >= x.shape[dim] else torch.cat((found, x.narrow(dim, start, x.shape[dim] - start)), dim)

    def spread(self, x: Tensor, length: int) -> Tensor:
        """What `of` took from tokens of a row, back in their places, with zeros between. [b h kept d] → [b h n d]"""
        whole, blocks = length // self.stride * self.stride, length // self.stride
        spread = x.new_zeros(*x.shape[:2], length, x.shape[3])
        places = spread[:, :, :whole].unflatten(2, (-1, self.stride))[:, :, :, self.stride - self.summary :]
        places.copy_(x[:, :, : blocks * self.summary].unflatten(2, (-1, self.summary)))
        start = whole + self.stride - self.summary
        if start < length:
            spread[:, :, start:] = x[:, :, blocks * self.summary :]
        return spread


def factors_of(mask: Mask) -> list[Factor] | None:
    """None: the mask's rule leaves out no slots, or more than factors can say."""
    return mask.lowered("factors", lambda: _find(mask))


def _find(mask: Mask) -> list[Factor] | None:
    query, key = mask.query, mask.key
    if query.start or key.start or query.size != key.size or query.documents is not key.documents:
        return None
    rules = rules_of(mask.rule)
    common = [rule for rule in rules if isinstance(rule, Everything | Causal | NotPadding | SameDocument)]
    patterns = [rule for rule in rules if rule not in common]
    if len(patterns) != 1:
        return None
    everyone: Rule = Everything()
    for rule in common:
        everyone = everyone & rule
    behind = Causal() in common

    def even(stride: int) -> bool:  # filling comes after all tokens: who looks back does not see it
        return behind or key.size % stride == 0

    match patterns[0]:
        case Window(size, step) if step > 1 and even(step):
            return _strided(mask, everyone & Window(size), step)
        case Strided(stride) if even(stride):
            return _strided(mask, everyone, stride)
        case Either(Window(size, 1), Strided(stride)) | Either(Strided(stride), Window(size, 1)) if behind:
            far = everyone & ~Window(-(-size // stride))  # of what is a multiple of the stride away
            return [Factor(Mask(everyone & Window(size), query, key, mask.device)), *_strided(mask, far, stride)]
        case Fixed(stride, summary) if key.documents is None and key.size > stride:
            block = torch.arange(key.size, device=mask.device)[None] // stride + 1
            own, rest = Tokens(key.size, documents=block), Summaries(stride, summary, behind)
            others = Tokens(rest.of(block, 1).shape[1])
            return [
                Factor(Mask(everyone & SameDocument(), own, own, mask.device)),
                Factor(Mask(rest, query, others, mask.device), summaries=rest),
            ]
    return None


def _strided(mask: Mask, rule: Rule, stride: int) -> list[Factor]:
    """`rule` counts in strides."""
    side = mask.key
    documents = side.documents
    if documents is not None:
        padded = F.pad(documents, (0, -side.size % stride))
        documents = padded.unflatten(1, (-1, stride)).transpose(1, 2).flatten(0, 1)  # [b·s n/s]
    tokens = Tokens(-(-side.size // stride), documents=documents)
    return [Factor(Mask(rule, tokens, tokens, mask.device), stride)]


def joined(answers: list[Answer]) -> Answer:
    """Each answer counts as much as the sum of its softmax. [dao2022 §3.1]"""
    o, log_sum = answers[0]
    for other, its_sum in answers[1:]:
        nothing, none = log_sum == torch.inf, its_sum == torch.inf
        share = torch.sigmoid(log_sum - its_sum).masked_fill(nothing, 0.0).masked_fill(none & ~nothing, 1.0)
        o = torch.lerp(other, o, share[..., None].to(o.dtype))
        both = torch.logaddexp(log_sum, its_sum)
        log_sum = torch.where(nothing, its_sum, torch.where(none, log_sum, both))
    return o, log_sum
