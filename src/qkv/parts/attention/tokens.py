"""Where tokens stand: what a visibility rule may know of them.

Shapes: b rows, q queries, k keys, g marked tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.errors import QkvError


@dataclass(frozen=True, eq=False)
class Tokens:
    """Where one side of an attention stands in its rows: `size` consecutive slots from `start` on.

    `documents` [b size] numbers the document of each slot, 0 for padding; None: all slots are real and of one document.
    `marks` [b size] or [1 size], bool, tell tokens that a rule treats in a way of their own; None: no token.
    """

    size: int
    start: int = 0
    documents: Tensor | None = None
    marks: Tensor | None = None
    most_marked: int | None = None  # no row has more marks than these; None: they must be counted

    @staticmethod
    def padded(lengths: Tensor, size: int) -> Tokens:
        """Rows filled from the left: slots past a row's length are padding.

        Lengths that do not fit are refused where looking at them makes no GPU wait.
        """
        if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and len(lengths):
            shortest, longest = (int(length) for length in lengths.aminmax())
            if shortest < 0 or longest > size:
                wrong = longest if longest > size else shortest
                raise QkvError(f"A row of {size} slots cannot hold {wrong} tokens: lengths go from 0 to {size}.")
        return Tokens(size, documents=(torch.arange(size, device=lengths.device) < lengths[:, None]).long())  # [b size]

    def select(self, rows: Tensor) -> Tokens:
        if self.rows is None:
            return self
        documents = None if self.documents is None else self.documents[rows]
        marks = None if self.marks is None else self.marks[rows]
        return Tokens(self.size, self.start, documents, marks, self.most_marked)

    def part(self, first: int, last: int) -> Tokens:
        """The slots from `first` to before `last`, or to the end where that comes sooner."""
        last = min(last, self.size)
        documents = None if self.documents is None else self.documents[:, first:last]
        marks = None if self.marks is None else self.marks[:, first:last]
        return Tokens(last - first, self.start + first, documents, marks, self.most_marked)

    def sight(self, device: torch.device | str, dim: int) -> Sight:
        """As tensors for a table [b q k]; `dim` is the axis of the table that is not this side's."""
        index = self.index(device)[None]  # [1 n]
        document, marked = (None if each is None else each.unsqueeze(dim) for each in (self.documents, self.marks))
        return Sight(index.unsqueeze(dim), document, marked)

    def index(self, device: torch.device | str) -> Tensor:
        """The slots. [size]"""
        return torch.arange(self.start, self.start + self.size, device=device)

    @property
    def end(self) -> int:
        """No token that is no filling stands in a slot as large as this number."""
        return self.start + self.size

    @property
    def rows(self) -> int | None:
        """The rows of a batch that something is said of; None: whatever is said holds for all."""
        return next((len(each) for each in (self.documents, self.marks) if each is not None), None)

    def counted(self) -> Tokens:
        """The same, its marks counted if they were not: once for all layers of a pass, since a device waits for it."""
        if self.marks is None or self.most_marked is not None:
            return self
        return replace(self, most_marked=int(self.marks.sum(1).max()))

    def marked_slots(self) -> tuple[Tensor, Tensor]:
        """The slots of marked tokens, filled up where a row has fewer than another; which are no filling. [b g] each"""
        most = self.counted().most_marked
        assert self.marks is not None
        slots = self.marks.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        return slots, self.marks.gather(1, slots)


@dataclass(frozen=True)
class Sight:
    """What a rule is shown of the tokens on one side: index, document, mark, as tensors that broadcast to [b q k]."""

    index: Tensor
    document: Tensor | None
    marked: Tensor | None = None
