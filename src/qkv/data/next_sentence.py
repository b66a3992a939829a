"""Pairs of segments for BERT's second question: does the second one follow the first in its document? [devlin2019 §3.1]

Shapes: n rows, b rows of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from qkv.data.documents import Encoder, encode_rows, sentences_of
from qkv.data.masking import MaskedBatch, Masking, hide
from qkv.data.plan import PlannedBatch
from qkv.data.text_rows import TaskRows, TextRows, with_filler
from qkv.data.token_rows import Ints, TokenRows, offsets_of
from qkv.errors import QkvError


@dataclass(frozen=True)
class PretrainingBatch(MaskedBatch):
    """Both of BERT's questions."""

    elsewhere: Tensor  # [b] long: 1 if the second segment does not follow the first, 0 if it does, -1 in filler rows
    asked: int  # rows that are not filler


@dataclass(frozen=True)
class Sentences:
    """The sentences of a corpus as ids, in their order, and where each document begins."""

    tokens: TokenRows
    documents: Ints  # [documents + 1]: number of the first sentence of each

    @classmethod
    def from_texts(cls, texts: Sequence[str], encoder: Encoder) -> "Sentences":
        """Documents in sentences; those without any are left out."""
        split = [sentences for text in texts if (sentences := sentences_of(text))]
        flat = [sentence for sentences in split for sentence in sentences]
        return cls.from_rows(encode_rows(flat, encoder), np.array([len(sentences) for sentences in split]))

    @classmethod
    def from_rows(cls, tokens: TokenRows, sizes: Ints) -> "Sentences":
        """Sentences as rows of ids, `sizes[i]` of them in document i."""
        if len(sizes) < 2:
            raise QkvError(f"A segment from elsewhere needs a second document, but there are {len(sizes)}.")
        return cls(tokens, offsets_of(sizes))


class Special(NamedTuple):
    """The tokens around two segments: classifier, first, separator, second, separator."""

    classifier: int
    separator: int
    pad: int


class SegmentPairs:
    """A function from epoch to rows: pairs of segments, made anew from the documents for each epoch.

    Sentences are gathered until they fill `length` tokens (in a tenth of the rows, a random shorter length: fine-tuning
    will see short texts too), and divided at random into a first and a second segment. In half of the rows a stretch of
    another document takes the place of the second, and what it replaced is used for the next row. Too long a pair
    loses tokens at either end of its longer segment. So the authors' code fills rows; the paper says only that half of
    the time the second segment is the true one.
    """

    def __init__(
        self,
        sentences: Sentences,
        length: int,
        special: Special,
        masking: Masking,
        *,
        seed: int = 0,
        short: float = 0.1,
    ) -> None:
        if length < 5:
            raise QkvError(f"A row needs room for two segments and 3 special tokens, so at least 5, but has {length}.")
        self.sentences, self.length, self.special, self.masking = sentences, length, special, masking
        self.seed, self.short = seed, short

    def __call__(self, epoch: int) -> "PretrainingRows":
        generator = np.random.default_rng([self.seed, epoch])
        rows: list[_Pair] = []
        for document in generator.permutation(len(self.sentences.documents) - 1):
            rows += self._pairs_of(int(document), generator)
        if not rows:
            raise QkvError("There is no pair of segments: all documents are empty.")
        classifier, separator, pad = self.special
        texts = [[classifier, *row.first, separator, *row.second, separator] for row in rows]
        segments = [[0] * (len(row.first) + 2) + [1] * (len(row.second) + 1) for row in rows]
        return PretrainingRows(
            TextRows(TokenRows.from_lists(texts, pad), TokenRows.from_lists(segments, 0), np.arange(len(rows))),
            elsewhere=np.array([int(not row.follows) for row in rows]),
            masking=self.masking,
            seed=(self.seed, epoch),
        )

    def _pairs_of(self, document: int, generator: np.random.Generator) -> "list[_Pair]":
        offsets = self.sentences.tokens.offsets
        sentence, last = self.sentences.documents[document : document + 2].tolist()
        room = self.length - 3
        rows = []
        while sentence < last:
            wanted = int(generator.integers(2, room + 1)) if generator.random() < self.short else room
            # The sentences from here on that reach the wanted length, or all that are left.
            end = min(last, max(sentence + 1, int(np.searchsorted(offsets, offsets[sentence] + wanted))))
            middle = sentence + 1 if end == sentence + 1 else int(generator.integers(sentence + 1, end))
            first = self._tokens(sentence, middle)
            follows = end > middle and generator.random() < 0.5
            if follows:
                second = self._tokens(middle, end)
            else:
                second = self._elsewhere(document, max(1, wanted - len(first)), generator)
                end = middle  # what was not used is there for the next row
            if len(first) and len(second):
                rows.append(_Pair(*truncated(first, second, room, generator), follows))
            sentence = end
        return rows

    def _elsewhere(self, document: int, wanted: int, generator: np.random.Generator) -> list[int]:
        """Sentences of another document, from a random one on, until the wanted length is reached."""
        documents = self.sentences.documents
        other = int(generator.integers(len(documents) - 2))
        other += other >= document
        first = int(generator.integers(documents[other], documents[other + 1]))
        offsets = self.sentences.tokens.offsets
        end = max(first + 1, int(np.searchsorted(offsets, offsets[first] + wanted)))
        return self._tokens(first, min(end, int(documents[other + 1])))

    def _tokens(self, first: int, end: int) -> list[int]:
        """The ids of neighbouring sentences."""
        offsets = self.sentences.tokens.offsets
        tokens: list[int] = self.sentences.tokens.ids[offsets[first] : offsets[end]].tolist()
        return tokens


class _Pair(NamedTuple):
    first: list[int]
    second: list[int]
    follows: bool


def truncated(
    first: list[int], second: list[int], room: int, generator: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Two segments that fit: tokens go one by one from the longer segment, at its front or back by chance."""
    a, b = [0, len(first)], [0, len(second)]  # what is left of each: from, to
    excess = len(first) + len(second) - room
    for at_front in generator.random(max(0, excess)) < 0.5:
        longer = a if a[1] - a[0] > b[1] - b[0] else b
        if at_front:
            longer[0] += 1
        else:
            longer[1] -= 1
    return first[slice(*a)], second[slice(*b)]


@dataclass(frozen=True)
class PretrainingRows(TaskRows):
    """Pairs of segments whose tokens are hidden when a batch is made."""

    elsewhere: Ints  # [n]: 1 if the second segment does not follow the first
    masking: Masking
    seed: Sequence[int] = (0,)

    def batch(self, planned: PlannedBatch) -> PretrainingBatch:
        return PretrainingBatch(
            **hide(self.texts, planned, self.masking, self.seed),
            elsewhere=with_filler(self.elsewhere, planned, -1),
            asked=len(planned.rows),
        )
