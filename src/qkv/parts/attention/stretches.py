"""Tokens that are several stretches of a longer row, and attention from each of them.

Shapes: b rows, h query heads, g key/value heads, q queries, k keys, d width of a key, e of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.tokens import Tokens
from qkv.parts.attention.visibility import Causal, Mask
from qkv.parts.attention.whole_rows import rules_of

Read = Callable[[Tensor, Tensor, Tensor, Mask, Tensor | None, float], Tensor]


@dataclass(frozen=True, eq=False)
class Stretches(Tokens):
    """Stretches of consecutive slots, one behind the other, of rows that have `row` slots in all.

    What lies beyond the row fills up the last stretches, so that all ranks that share a row hold as many slots of it.
    """

    parts: tuple[Tokens, ...] = ()
    row: int = 0

    @staticmethod
    def of(starts: tuple[int, ...], each: int, row: int, documents: Tensor | None = None) -> Stretches:
        """Stretches of `each` slots; `documents` [b size] are those of all of them, side by side."""
        parts = tuple(
            Tokens(each, start, None if documents is None else documents[:, number * each : (number + 1) * each])
            for number, start in enumerate(starts)
        )
        return Stretches(each * len(starts), starts[0], documents, parts=parts, row=row)

    def index(self, device: torch.device | str) -> Tensor:
        return torch.cat([part.index(device) for part in self.parts])

    @property
    def end(self) -> int:
        return self.row

    def select(self, rows: Tensor) -> Tokens:
        raise QkvError("Stretches of a row are read with all the others of their batch: no rows can be taken out.")

    def part(self, first: int, last: int) -> Tokens:
        raise QkvError("Stretches of a row are taken one by one, as they are.")


def by_stretches(
    read: Read, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float
) -> Tensor:
    """What each stretch of the queries reads by itself, so that a kernel meets consecutive slots alone. [b h q e]

    Keys behind the end of a stretch are left out where no one looks ahead. That halves the work, and leaves as much of
    it for a stretch early in a row and one as late as for any two that lie like this. [grattafiori2024 §3.3.2]
    """
    masks = mask.lowered("stretches", lambda: _of_each(mask))
    answers, first = [], 0
    for each in masks:
        last, keys = first + each.query.size, each.key.size
        added = None if bias is None else bias[:, :, first:last, :keys]
        answers.append(read(q[:, :, first:last], k[:, :, :keys], v[:, :, :keys], each, added, dropout))
        first = last
    return torch.cat(answers, 2)


def _of_each(mask: Mask) -> list[Mask]:
    assert isinstance(mask.query, Stretches)
    back = any(isinstance(rule, Causal) for rule in rules_of(mask.rule))
    found = []
    for part in mask.query.parts:
        keys = mask.key.part(0, part.end) if back and mask.key.start == 0 else mask.key
        found.append(Mask(mask.rule, part, keys, mask.device))
    return found
