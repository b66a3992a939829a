"""Pairs of segments for BERT's second question: does the second one follow the first in its document? [devlin2019 §3.1]

Shapes: n rows, b rows of a batch.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from qkv.data.documents import Encoder, encode_rows, sentences_of
from qkv.data.masking import MaskedBatch, Masking, hide
from qkv.data.plan import PlannedBatch
from qkv.data.text_rows import TaskRows, TextRows, with_filler
from qkv.data.token_rows import Ints, TokenRows, offsets_of, places_of
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
        generator = random.Random(f"{self.seed} {epoch}")
        documents = list(range(len(self.sentences.documents) - 1))
        generator.shuffle(documents)
        rows = [row for document in documents for row in self._pairs_of(document, generator)]
        if not rows:
            raise QkvError("There is no pair of segments: all documents are empty.")
        table = np.array(rows)  # [n 5]
        return PretrainingRows(self._texts(table), elsewhere=table[:, 4], masking=self.masking, seed=(self.seed, epoch))

    def _pairs_of(self, document: int, generator: random.Random) -> "Iterator[_Pair]":
        offsets = self.sentences.tokens.offsets
        sentence, last = self.sentences.documents[document : document + 2].tolist()
        room = self.length - 3
        while sentence < last:
            wanted = generator.randint(2, room) if generator.random() < self.short else room
            # The sentences from here on that reach the wanted length, or all that are left.
            end = min(last, max(sentence + 1, int(offsets.searchsorted(offsets[sentence] + wanted))))
            middle = sentence + 1 if end == sentence + 1 else generator.randrange(sentence + 1, end)
            first = int(offsets[sentence]), int(offsets[middle])
            if end > middle and generator.random() < 0.5:
                elsewhere, second = 0, (int(offsets[middle]), int(offsets[end]))
            else:
                elsewhere, second = 1, self._elsewhere(document, max(1, wanted - first[1] + first[0]), generator)
                end = middle  # what was not used is there for the next row
            if first[0] < first[1] and second[0] < second[1]:
                yield (*truncated(first, second, room, generator), elsewhere)
            sentence = end

    def _elsewhere(self, document: int, wanted: int, generator: random.Random) -> "_Stretch":
        """Sentences of another document, from a random one on, until the wanted length is reached."""
        documents, offsets = self.sentences.documents, self.sentences.tokens.offsets
        other = generator.randrange(len(documents) - 2)
        other += other >= document
        sentence, last = generator.randrange(documents[other], documents[other + 1]), documents[other + 1]
        end = min(last, max(sentence + 1, offsets.searchsorted(offsets[sentence] + wanted)))
        return int(offsets[sentence]), int(offsets[end])

    def _texts(self, table: Ints) -> TextRows:
        """classifier, first segment, separator, second segment, separator; with segments 0 and 1."""
        sizes = table[:, [1, 3]] - table[:, [0, 2]]  # [n 2]: of the first and the second segment
        offsets = offsets_of(sizes.sum(1) + 3)
        begins = offsets[:-1]
        ids = np.full(int(offsets[-1]), self.special.separator, np.int32)
        ids[begins] = self.special.classifier
        segments = np.zeros(len(ids), np.int32)
        for number, places in enumerate((begins + 1, begins + sizes[:, 0] + 2)):
            size = sizes[:, number]
            ids[places_of(places, size)] = self.sentences.tokens.ids[places_of(table[:, 2 * number], size)]
        segments[places_of(begins + sizes[:, 0] + 2, sizes[:, 1] + 1)] = 1
        tokens = TokenRows(ids, offsets, self.special.pad)
        return TextRows(tokens, TokenRows(segments, offsets, 0), np.arange(len(table)))


_Stretch = tuple[int, int]  # from, to: among all the ids of the corpus
_Pair = tuple[int, int, int, int, int]  # the first segment, the second one, and whether this is from elsewhere


def truncated(first: _Stretch, second: _Stretch, room: int, generator: random.Random) -> tuple[int, int, int, int]:
    """Two segments that fit: the longer one loses tokens, then both in turn, at the front or the back by chance."""
    sizes = first[1] - first[0], second[1] - second[0]
    excess = sum(sizes) - room
    if excess <= 0:
        return (*first, *second)
    longer = max(sizes)
    if excess <= longer - min(sizes):
        kept = tuple(size - excess if size == longer else size for size in sizes)
    else:
        kept = (room + 1) // 2, room // 2
    cut = []
    for (begin, _), size, left in zip((first, second), sizes, kept, strict=True):
        at_front = sum(generator.random() < 0.5 for _ in range(size - left))
        cut += [begin + at_front, begin + at_front + left]
    return cut[0], cut[1], cut[2], cut[3]


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
