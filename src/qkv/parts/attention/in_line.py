"""Documents of a batch one behind the other in a single row: no slot is padding, so nothing is computed for it.

Shapes: n documents, s slots of all of them together, d width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.tokens import Tokens
from qkv.parts.attention.visibility import Both, Causal, Mask, SameDocument
from qkv.parts.precision import widened


@dataclass(frozen=True, eq=False)
class InLine(Tokens):
    """One row that holds whole documents and nothing else. How long they are is known without asking a device."""

    lengths: tuple[int, ...] = ()  # of the documents, in their order
    bounds: Tensor | None = None  # [n + 1] int32: where each document begins, and where the last one ends
    positions: Tensor | None = None  # [1 s]: positions begin anew with each document

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device | str = "cpu") -> InLine:
        """Documents of these lengths."""
        if not lengths or min(lengths) < 1:
            raise QkvError("Documents that stand in line are one at least, and each has a token at least.")
        size, counts = sum(lengths), torch.tensor(lengths)
        bounds = torch.cat((torch.zeros(1, dtype=torch.long), counts.cumsum(0)))  # [n + 1]
        documents = torch.arange(1, len(lengths) + 1).repeat_interleave(counts)  # [s]
        positions = torch.arange(size) - bounds[:-1].repeat_interleave(counts)
        return InLine(
            size,
            documents=documents[None].to(device),
            lengths=tuple(lengths),
            bounds=bounds.int().to(device),
            positions=positions[None].to(device),
        )

    @cached_property
    def end(self) -> int:
        """No position is as large as this number: a document's tokens are counted from its own beginning."""
        return max(self.lengths)

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """Neighbours of one length, which are a rectangle: (first slot, documents, length of each)."""
        found, first = [], 0
        for length, some in groupby(self.lengths):
            count = len(list(some))
            found.append((first, count, length))
            first += count * length
        return found

    def first_of(self, x: Tensor) -> Tensor:
        """The first token of each document. [1 s d] → [n d]"""
        assert self.bounds is not None
        return x[0].index_select(0, self.bounds[:-1])

    def last_of(self, x: Tensor) -> Tensor:
        """The last token of each document. [1 s d] → [n d]"""
        assert self.bounds is not None
        return x[0].index_select(0, self.bounds[1:] - 1)

    def mean_of(self, x: Tensor) -> Tensor:
        """The mean of the tokens of each document. [1 s d] → [n d]"""
        found = torch.segment_reduce(widened(x[0]), "mean", offsets=self.bounds, unsafe=True)  # unsafe: looks at none
        return found.to(x.dtype)

    def select(self, rows: Tensor) -> Tokens:
        raise QkvError("Documents that stand in line are read together: no rows can be taken out.")

    def part(self, first: int, last: int) -> Tokens:
        raise QkvError("Documents that stand in line are read together: no slots can be taken out.")


def seen_in_line(mask: Mask | None) -> Literal["all", "causal"] | None:
    """What a token sees where documents stand in line: its own document, or what came before in it; None: else."""
    if mask is None or not isinstance(mask.query, InLine) or mask.key is not mask.query:
        return None
    if isinstance(mask.rule, SameDocument):
        return "all"
    rule = mask.rule
    causal = isinstance(rule, Both) and isinstance(rule.first, Causal) and isinstance(rule.second, SameDocument)
    return "causal" if causal else None
