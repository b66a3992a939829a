"""Rows for next-token prediction: documents packed side by side into rows of one length, or one stream cut into rows.

A row of n + 1 tokens gives n predictions: a model reads all but the last and predicts all but the first. A document too
long for a row goes on in another one, which begins with the last token of the first: so every token is predicted once.

Shapes: b rows of a batch, n tokens that a model reads of a row.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.data.documents import Documents
from qkv.data.plan import PlannedBatch
from qkv.data.rows import TensorBatch, single
from qkv.data.token_rows import Ints, TokenRows, offsets_of, places_of
from qkv.errors import QkvError

NOTHING = "There is nothing to predict: all documents are empty."


@dataclass(frozen=True)
class LanguageBatch(TensorBatch):
    """Rows of text whose every token is predicted from those before it in its document."""

    ids: Tensor  # [b n+1] long
    documents: Tensor  # [b n+1] long: the number of each token's document in its row, 0 = padding
    packed: bool  # whether a row holds more than one document
    predicted: int  # tokens with one of the same document before them
    bytes: int  # that the predicted tokens stand for, on average: exact over a whole data set

    @property
    def wanted(self) -> tuple[Tensor, Tensor]:
        """The tokens to predict, and which of them are: those that go on with the document before. [b n] [b n]"""
        now, before = self.documents[:, 1:], self.documents[:, :-1]
        return self.ids[:, 1:], (now == before) & (now > 0)


@dataclass(frozen=True)
class LanguageRows:
    """Rows of at most n + 1 tokens, each made of one or more pieces of documents."""

    tokens: TokenRows
    documents: TokenRows  # beside the tokens: 1, 2, ... in each row
    bytes: Ints  # [rows]

    @classmethod
    def none(cls) -> "LanguageRows":
        nothing = TokenRows.from_lists([], 0)
        return cls(nothing, nothing, np.zeros(0, np.int64))

    @property
    def original(self) -> Ints:
        return np.arange(len(self.tokens))

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        return single(self.tokens.lengths - 1)

    def batch(self, planned: PlannedBatch) -> LanguageBatch:
        ids, _ = self.tokens.rectangle(planned.rows, planned.source_width + 1, planned.filler)
        documents, _ = self.documents.rectangle(planned.rows, planned.source_width + 1, planned.filler)
        going_on = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0)
        return LanguageBatch(
            ids=torch.from_numpy(ids),
            documents=torch.from_numpy(documents),
            packed=bool(documents.max() > 1),
            predicted=int(going_on.sum()),
            bytes=int(self.bytes[planned.rows].sum()),
        )


def pack(documents: Documents, length: int, *, end: int, start: int | None = None, seed: int = 0) -> LanguageRows:
    """Whole documents, or pieces of long ones, side by side in rows of which a model reads `length` tokens.

    Each document ends with `end`, and begins with `start` where one is given, so that its first token is predicted too.
    Long pieces find their row first, each the fullest that has room (best fit, decreasing): little is left empty. Which
    of several equally long documents share a row depends on the seed.
    """
    _check(length)
    generator = np.random.default_rng(seed)
    marked = _Marked.of(documents, np.arange(len(documents)), start, end)
    firsts, lengths = _pieces(marked.tokens, length)
    order = np.lexsort((generator.permutation(len(firsts)), -lengths))
    rows = best_fit(lengths[order].tolist(), length + 1)
    pieces = order[np.concatenate([generator.permutation(row) for row in rows])]  # in a row their order is chance
    counts = np.array([len(row) for row in rows])  # pieces of each row
    begins = offsets_of(counts)[:-1]
    firsts, lengths = firsts[pieces], lengths[pieces]
    offsets = offsets_of(np.add.reduceat(lengths, begins))
    numbers = np.arange(len(pieces)) - np.repeat(begins, counts) + 1  # of each piece in its row, from 1
    return LanguageRows(
        TokenRows(marked.tokens.ids[places_of(firsts, lengths)], offsets, end),
        TokenRows(np.repeat(numbers.astype(np.int32), lengths), offsets, 0),
        np.add.reduceat(marked.bytes_predicted(firsts, lengths), begins),
    )


def stream(documents: Documents, length: int, *, end: int, start: int | None = None, seed: int = 0) -> LanguageRows:
    """All documents in one stream, `end` after each, cut into rows of which a model reads `length` tokens.

    A row does not care where documents begin: tokens see across. The order of the documents depends on the seed.
    """
    _check(length)
    order = np.random.default_rng(seed).permutation(len(documents))
    marked = _Marked.of(documents, order, start, end)
    firsts = np.arange(0, len(marked.tokens.ids) - 1, length)
    if not len(firsts):
        raise QkvError(NOTHING)
    lengths = np.minimum(length + 1, len(marked.tokens.ids) - firsts)
    offsets = offsets_of(lengths)
    return LanguageRows(
        TokenRows(marked.tokens.ids[places_of(firsts, lengths)], offsets, end),
        TokenRows(np.ones(int(offsets[-1]), np.int32), offsets, 0),
        marked.bytes_predicted(firsts, lengths),
    )


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Bins of places in `lengths` (none longer than `capacity`, best given in falling order): each goes where it fits
    tightest, and into a new bin where it fits nowhere."""
    bins: list[list[int]] = []
    open_bins: dict[int, list[int]] = {}  # room left -> bins
    rooms: list[int] = []  # the keys of `open_bins`, rising
    for place, length in enumerate(lengths):
        at = bisect_left(rooms, length)
        if at == len(rooms):
            bins.append([])
            room, chosen = capacity, len(bins) - 1
        else:
            room = rooms[at]
            chosen = open_bins[room].pop()
            if not open_bins[room]:
                del open_bins[room], rooms[at]
        bins[chosen].append(place)
        left = room - length
        if left not in open_bins:
            open_bins[left] = []
            insort(rooms, left)
        open_bins[left].append(chosen)
    return bins


def _check(length: int) -> None:
    if length < 1:
        raise QkvError(f"A row must have at least 1 token to read, but {length} were asked for.")


@dataclass(frozen=True)
class _Marked:
    """Documents with their special tokens, and how many bytes each holds."""

    tokens: TokenRows
    bytes: Ints
    starts: int  # 1 if each document begins with a token that stands for nothing

    @classmethod
    def of(cls, documents: Documents, order: Ints, start: int | None, end: int) -> "_Marked":
        old = documents.tokens
        starts = 0 if start is None else 1
        lengths = old.lengths[order]
        offsets = offsets_of(lengths + starts + 1)
        ids = np.full(int(offsets[-1]), end, np.int32)
        if start is not None:
            ids[offsets[:-1]] = start
        ids[places_of(offsets[:-1] + starts, lengths)] = old.ids[places_of(old.offsets[order], lengths)]
        return cls(TokenRows(ids, offsets, end), documents.bytes[order], starts)

    def bytes_predicted(self, firsts: Ints, lengths: Ints) -> Ints:
        """The bytes that all but the first token of each stretch stand for. [p]"""
        return self._bytes_up_to(firsts + lengths - 1) - self._bytes_up_to(firsts)

    def _bytes_up_to(self, places: Ints) -> Ints:
        """The bytes of all documents up to and with these tokens.

        A text's bytes are spread evenly over its tokens and the end, in whole numbers that sum to all of them.
        """
        document = np.searchsorted(self.tokens.offsets, places, side="right") - 1
        into = places - self.tokens.offsets[document] + 1 - self.starts  # tokens that stand for something, so far
        of = self.tokens.lengths[document] - self.starts
        share: Ints = self.bytes[document] * into // of
        return offsets_of(self.bytes)[document] + share


def _pieces(rows: TokenRows, length: int) -> tuple[Ints, Ints]:
    """(first, length) of pieces of at most length + 1 tokens, each beginning with the last token of the one before.

    A single token predicts nothing and is left out. [p] [p]
    """
    counts = np.maximum(1, -(-(rows.lengths - 1) // length))
    document = np.repeat(np.arange(len(rows)), counts)
    number = np.arange(len(document)) - np.repeat(offsets_of(counts)[:-1], counts)
    firsts = rows.offsets[document] + number * length
    lengths = np.minimum(length + 1, rows.offsets[document + 1] - firsts)
    kept = lengths > 1
    if not kept.any():
        raise QkvError(NOTHING)
    return firsts[kept], lengths[kept]
