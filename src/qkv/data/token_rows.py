"""Many rows of token ids in two flat arrays, and rectangles cut out of them without a loop.

Shapes: n rows, b rows of a batch, w width of a batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def offsets_of(lengths: Ints) -> Ints:
    """Where each of these stretches begins when they lie side by side, and where the last one ends. [n] → [n + 1]"""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def places_of(firsts: Ints, lengths: Ints) -> Ints:
    """All places of many stretches, one stretch after the other: first, first + 1, ... of each."""
    offsets = offsets_of(lengths)
    return np.repeat(firsts - offsets[:-1], lengths) + np.arange(offsets[-1])


def stretches_of(sizes: Ints, most: int) -> Iterator[tuple[int, int]]:
    """(first, last) of stretches that together hold `most` at most, or one that alone is larger. [n]"""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(ends):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, last
        first = last


@dataclass(frozen=True)
class TokenRows:
    """Row i is `ids[offsets[i] : offsets[i + 1]]`: eight bytes a row and four a token, however many rows there are."""

    ids: NDArray[np.int32]
    offsets: Ints  # [n + 1]
    pad: int

    @classmethod
    def from_lists(cls, rows: Iterable[Sequence[int]], pad: int) -> "TokenRows":
        rows = list(rows)
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        offsets = offsets_of(lengths)
        return cls(np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1])), offsets, pad)

    @classmethod
    def joined(cls, parts: Sequence["TokenRows"]) -> "TokenRows":
        """The rows of several, one after the other; for texts that are turned into ids some at a time."""
        offsets = offsets_of(np.concatenate([part.lengths for part in parts]))
        return cls(np.concatenate([part.ids for part in parts]), offsets, parts[0].pad)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> list[int]:
        row = range(len(self))[row]
        return self.ids[self.offsets[row] : self.offsets[row + 1]].tolist()

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)  # [n]

    def lengths_of(self, rows: Ints) -> Ints:
        return self.offsets[rows + 1] - self.offsets[rows]  # [b]

    def chosen(self, rows: Ints) -> "TokenRows":
        """Some of the rows, in the order that is given."""
        lengths = self.lengths_of(rows)
        return TokenRows(self.ids[places_of(self.offsets[rows], lengths)], offsets_of(lengths), self.pad)

    def shortened(self, most: int) -> "TokenRows":
        """Of each row its first ids, so many at most."""
        lengths = self.lengths
        if not len(lengths) or lengths.max() <= most:
            return self
        lengths = np.minimum(lengths, most)
        return TokenRows(self.ids[places_of(self.offsets[:-1], lengths)], offsets_of(lengths), self.pad)

    def between(self, before: Sequence[int], behind: Sequence[int]) -> "TokenRows":
        """Each row with these ids around it."""
        added = len(before) + len(behind)
        if not added:
            return self
        offsets = self.offsets + added * np.arange(len(self.offsets))
        ids = np.empty(offsets[-1], np.int32)
        ids[places_of(offsets[:-1] + len(before), self.lengths)] = self.ids
        for place, token in enumerate(before):
            ids[offsets[:-1] + place] = token
        for place, token in enumerate(behind):
            ids[offsets[1:] - len(behind) + place] = token
        return TokenRows(ids, offsets, self.pad)

    def padded(self, rows: Ints, lengths: Ints, width: int) -> Ints:
        """The first `lengths` ids of each of these rows, padded on the right to `width`."""
        column = np.arange(width)
        place = self.offsets[rows][:, None] + column  # [b w]
        return np.where(column < lengths[:, None], self.ids.take(place, mode="clip"), np.int64(self.pad))  # [b w]

    def rectangle(self, rows: Ints, width: int, filler: int = 0) -> tuple[Ints, Ints]:
        """These rows padded to `width`, and their lengths; `filler` rows, the first one cut to a token, come last."""
        rows = np.concatenate([rows, np.repeat(rows[:1], filler)])  # [b]
        lengths = self.lengths_of(rows)
        lengths[len(rows) - filler :] = 1
        return self.padded(rows, lengths, width), lengths  # [b w] [b]
