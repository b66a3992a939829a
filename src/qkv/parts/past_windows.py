"""What trials of faster ways are made of, to be long enough that a window hides something.

Of thousands of tokens that all look at random things, a few more or less change an average by less than rounding does.
So what stands beyond a window is made to be heard: were it seen, or what is just within it not, nobody could miss it.

Shapes: r rows, h key/value heads, c slots that there is room for, s slots, d width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.parts.agreement import tokens_like
from qkv.parts.attention.visibility import Chunks, Fixed, GlobalTokens, Rule, Strided, Window

BEYOND = 3  # slots kept behind the widest window
TILE = 256  # slots that are drawn; the others repeat them
FAINT = 0.1  # keys, so that no slot is looked at much more than another
LOUDEST = 8192  # times a number, so that half precision holds it


@lru_cache(maxsize=256)
def spans(rule: Rule) -> frozenset[int]:
    """The numbers of tokens from which on a rule hides some: in rows that are no longer all see as if it were not."""
    own: tuple[int, ...] = ()
    match rule:
        case Window(size, step):
            own = (step, size * step)
        case Chunks(size, before, after):
            own = (size * (before + 1), size * (after + 1))
        case Strided(stride) | Fixed(stride, _):
            own = (stride,)
        case GlobalTokens(count):
            own = (count,)
    inner: list[Any] = [getattr(rule, each.name) for each in fields(rule)] if is_dataclass(rule) else []
    found = [spans(each) for each in inner if isinstance(each, Rule)]
    return frozenset(each for each in own if each > 1).union(*found)


def spans_of(*parts: nn.Module) -> frozenset[int]:
    """Those of all rules inside."""
    rules = {each.__dict__.get("visibility") for part in parts for each in part.modules()}
    return frozenset[int]().union(*(spans(each) for each in rules if isinstance(each, Rule)))


class Passed(NamedTuple):
    """A span that rows pass, and how long one is that tries it."""

    span: int
    size: int

    @property
    def kind(self) -> tuple[int, int, int]:
        """What rows may differ in without being tried anew: up to twice as much hidden, or as long."""
        return self.span, (self.size - self.span).bit_length(), (self.size - 1).bit_length()


def passed(found: Iterable[int], length: int) -> list[Passed]:
    """Of these spans those that rows of this length pass. No trial is longer than they are, so none costs much more."""
    return [Passed(span, min(length, 2 * span)) for span in sorted(found) if span < length]


def row_past(like: Tensor, slots: int, size: int, span: int) -> Tensor:
    """A row [1 s d], in whose first `size` slots those that the last one may not see are alike, and unlike the others.

    Whoever sees them anyway gets an average of two things and not of one.
    """
    drawn = tokens_like(like, 1, slots, like.shape[-1])
    hidden, others = tokens_like(like, 2, 1, like.shape[-1], seed=1)
    first = (torch.arange(slots, device=like.device) < size - span)[:, None]
    return drawn / 2 + torch.where(first, hidden, others)


def fill_past(rooms: tuple[Tensor, Tensor], found: Iterable[int], first: int, place: int) -> None:
    """Keys and values [r h c d] of the slots from `first` to before `place`, as if they had been read.

    Of those where something begins to be hidden from `place`, each weighs as much as all others together.
    """
    (keys, values), count = rooms, min(TILE, place - first)
    drawn = tokens_like(keys, 1, keys.shape[1], count, keys.shape[3]) * FAINT
    louder = tokens_like(values, 1, values.shape[1], count, values.shape[3], seed=1) * count**0.5
    for begin in range(first, place, TILE):
        end = min(begin + TILE, place)
        keys[:, :, begin:end] = drawn[:, :, : end - begin]
        values[:, :, begin:end] = louder[:, :, : end - begin]
    for span in found:
        begin, end = max(first, place - span - BEYOND), min(place, place - span + BEYOND)
        if begin < end:
            loud = tokens_like(values, 1, values.shape[1], end - begin, values.shape[3], seed=span)
            values[:, :, begin:end] = loud * min(span, LOUDEST)
