"""Which rows go together into a batch: rows of like length, so that little of a batch is padding.

A plan sees lengths alone. A source row of s tokens needs a width of s; a target row of t tokens (from `<s>` to `</s>`)
needs t, of which a model reads and predicts t - 1 at a time. Widths are therefore rounded as s and as t - 1. Rows that
are a single text have targets of one token, which need no room.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from qkv.data.token_rows import Ints
from qkv.errors import QkvError


@dataclass(frozen=True)
class PlannedBatch:
    """Rows of one batch and the rectangle they are padded to.

    `filler` rows are added where the shape is fixed and the real rows do not fill it: nothing is predicted in them.
    """

    rows: Ints
    source_width: int
    target_width: int
    filler: int = 0

    @property
    def padded_tokens(self) -> int:
        return (len(self.rows) + self.filler) * max(self.source_width, self.target_width)

    def cut(self, first: int, last: int) -> PlannedBatch:
        """Rows from one place up to another; filler stays with the last row."""
        filler = self.filler if last >= len(self.rows) else 0
        return PlannedBatch(self.rows[first:last], self.source_width, self.target_width, filler)

    def divided(self, parts: int) -> list[PlannedBatch]:
        """The same rows in so many batches, or in as many as there are rows."""
        return [self.cut(first, last) for first, last in even_stretches(len(self.rows), parts)]


def even_stretches(rows: int, parts: int) -> list[tuple[int, int]]:
    """(first, last) of so many stretches that differ by one row at most, or of as many as there are rows."""
    parts = min(parts, rows)
    few, more = divmod(rows, parts)
    firsts = [number * few + min(number, more) for number in range(parts + 1)]
    return list(pairwise(firsts))


class Batching(Protocol):
    """A way of grouping all rows of an epoch. The generator decides between rows that are as good as each other."""

    def plan(self, source_lengths: Ints, target_lengths: Ints, generator: np.random.Generator) -> list[PlannedBatch]:
        """Batches that together hold each row once, in no particular order."""


@dataclass(frozen=True)
class TokenBudget:
    """As many rows as fit in `max_tokens`, padding counted [vaswani2017 §5.1]: rows * max(source, target) widths.

    Widths are rounded up to a `multiple_of`, so that a GPU meets fewer shapes, and ones that suit it.
    """

    max_tokens: int
    multiple_of: int = 1

    def plan(self, source_lengths: Ints, target_lengths: Ints, generator: np.random.Generator) -> list[PlannedBatch]:
        source = round_up(source_lengths, self.multiple_of)
        target = round_up(target_lengths - 1, self.multiple_of) + 1
        widths = np.maximum(source, target)
        must_fit(int(widths.max()), self.max_tokens)
        order = np.lexsort((generator.permutation(len(widths)), target, source, widths))
        widths = widths[order]  # ascending, so the last row of a batch is its widest
        batches = []
        first = 0
        while first < len(order):
            candidates = widths[first : first + self.max_tokens // int(widths[first])]
            count = int((np.arange(1, len(candidates) + 1) * candidates <= self.max_tokens).sum())
            rows = order[first : first + count]
            batches.append(PlannedBatch(rows, int(source[rows].max()), int(target[rows].max())))
            first += count
        return batches


@dataclass(frozen=True)
class RowCount:
    """Batches of `rows` rows drawn at random, whatever their lengths; the last one holds what is left.

    This is how fine-tuning recipes count ("batch size 32"), and it suits rows that are all equally long.
    """

    rows: int
    multiple_of: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise QkvError(f"A batch needs at least one row, but {self.rows} were asked for.")

    def plan(self, source_lengths: Ints, target_lengths: Ints, generator: np.random.Generator) -> list[PlannedBatch]:
        source = round_up(source_lengths, self.multiple_of)
        target = round_up(target_lengths - 1, self.multiple_of) + 1
        order = generator.permutation(len(source))
        groups = [order[first : first + self.rows] for first in range(0, len(order), self.rows)]
        return [PlannedBatch(rows, int(source[rows].max()), int(target[rows].max())) for rows in groups]


@dataclass(frozen=True)
class FixedShapes:
    """Batches of a handful of shapes alone, so that a compiled model is compiled a handful of times.

    A width w makes batches of max_tokens // (w + 1) rows: sources [rows w], targets [rows w + 1]. Rows left over when
    a width's batches are full go on to the next width; the very last batch is completed with filler rows.
    """

    max_tokens: int
    widths: tuple[int, ...]

    def plan(self, source_lengths: Ints, target_lengths: Ints, generator: np.random.Generator) -> list[PlannedBatch]:
        needed = np.maximum(source_lengths, target_lengths - 1)
        widths = sorted(self.widths)
        if needed.max() > widths[-1]:
            raise QkvError(f"A row of {needed.max()} tokens fits in none of the batch widths {widths}.")
        must_fit(widths[-1] + 1, self.max_tokens)
        place = np.searchsorted(widths, needed)
        batches = []
        rest = np.empty(0, np.int64)
        for bucket, width in enumerate(widths):
            rows = generator.permutation(np.concatenate([rest, np.flatnonzero(place == bucket)]))
            height = self.max_tokens // (width + 1)
            full = len(rows) // height * height
            batches += [PlannedBatch(rows[i : i + height], width, width + 1) for i in range(0, full, height)]
            rest = rows[full:]
        if len(rest):
            batches.append(PlannedBatch(rest, width, width + 1, filler=height - len(rest)))
        return batches


def round_up(lengths: Ints, multiple: int) -> Ints:
    return -(-lengths // multiple) * multiple


def must_fit(width: int, max_tokens: int) -> None:
    if width > max_tokens:
        raise QkvError(f"A row {width} tokens wide does not fit in batches of {max_tokens}: allow more tokens a batch.")
