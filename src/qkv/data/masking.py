"""Hidden tokens: some tokens of a text are replaced, and a model is asked what they were. [devlin2019 §3.1]

Shapes: b rows of a batch, s slots, m hidden tokens of the whole batch, v vocabulary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.plan import PlannedBatch
from qkv.data.text_rows import TaskRows, TextBatch, TextRows, TextTensors
from qkv.data.token_rows import Ints
from qkv.errors import QkvError

Flags = NDArray[np.bool_]

SPACE_MARKS = ("▁", "Ġ", " ")  # how tokenizers write the space that a word begins with
CONTINUES = "##"  # how WordPiece marks a piece inside a word


@dataclass(frozen=True)
class MaskedBatch(TextBatch):
    """Texts with hidden tokens, where these are and what they were."""

    places: Tensor  # [m] long: row · s + slot of each hidden token
    wanted: Tensor  # [m] long


class MaskedTensors(TextTensors):
    """The fields of a `MaskedBatch`, for those that have more."""

    places: Tensor
    wanted: Tensor


class Masking:
    """Which tokens are hidden and how: of `rate` of a text's tokens 80% become `mask`, 10% a random token, and 10% stay
    as they are, so that a model cannot rely on seeing a mask [devlin2019 §3.1].

    Special tokens are never hidden and never put in. With `continues` (a flag for each id, see `continuations`) whole
    words are chosen, and all their pieces share the choice.
    """

    def __init__(
        self,
        *,
        mask: int,
        vocabulary: int,
        special: Collection[int],
        rate: float = 0.15,
        masked: float = 0.8,
        random: float = 0.1,
        continues: Flags | None = None,
    ) -> None:
        if not 0 < rate < 1:
            raise QkvError(f"The share of hidden tokens must lie between 0 and 1, but is {rate}.")
        if min(masked, random) < 0 or masked + random > 1:
            raise QkvError(
                f"The shares of masks and random tokens must sum to at most 1, but are {masked} and {random}."
            )
        if continues is not None and len(continues) != vocabulary:
            raise QkvError(f"There are {len(continues)} flags for whole words, but {vocabulary} tokens.")
        self.mask, self.rate, self.masked, self.random, self.continues = mask, rate, masked, random, continues
        self.is_special = np.zeros(vocabulary, bool)
        self.is_special[[*special, mask]] = True
        self.ordinary = np.flatnonzero(~self.is_special)
        if not len(self.ordinary):
            raise QkvError("All tokens are special: there is nothing to hide.")

    def __call__(self, ids: Ints, lengths: Ints, generator: np.random.Generator) -> tuple[Ints, Ints]:
        """The ids with some hidden, and the places of those. [b s] [b] → [b s] [m]"""
        places = np.flatnonzero(self._choose(ids, lengths, generator))  # [m]
        fate = generator.random(len(places))
        put = np.where(fate < self.masked, self.mask, ids.ravel()[places])
        at_random = (fate >= self.masked) & (fate < self.masked + self.random)
        put = np.where(at_random, generator.choice(self.ordinary, len(places)), put)
        changed = ids.copy()
        changed.ravel()[places] = put
        return changed, places

    def _choose(self, ids: Ints, lengths: Ints, generator: np.random.Generator) -> Flags:
        """In each row words in random order until its share is reached, at least one; without words each token is one.

        [b s] [b] → [b s], all rows at once.
        """
        eligible = ~self.is_special[ids] & (np.arange(ids.shape[1]) < lengths[:, None])  # [b s]
        begins = eligible.copy()
        if self.continues is not None:
            begins[:, 1:] &= ~self.continues[ids[:, 1:]] | ~eligible[:, :-1]
        row_of_word = np.nonzero(begins)[0]  # [w]
        word = np.cumsum(begins.ravel()).reshape(ids.shape) - 1  # [b s]: of special tokens too, which are left out
        sizes = np.bincount(word[eligible], minlength=len(row_of_word))  # [w]
        order = np.lexsort((generator.random(len(sizes)), row_of_word))  # row by row, in a row by chance
        row, upto = row_of_word[order], np.cumsum(sizes[order])
        first = np.diff(row, prepend=-1) > 0  # the first word of each row
        before = np.maximum.accumulate(np.where(first, upto - sizes[order], 0))  # tokens of the rows above
        budget = np.maximum(1, np.round(self.rate * eligible.sum(1)))  # [b]
        chosen = np.zeros(len(sizes), bool)
        chosen[order] = first | (upto - before <= budget[row])
        return eligible & chosen[word] if len(sizes) else eligible


@dataclass(frozen=True)
class MaskedRows(TaskRows):
    """Texts whose tokens are hidden when a batch is made: the same tokens for the same seed and rows."""

    masking: Masking
    seed: Sequence[int] = (0,)  # for another choice each epoch: (seed, epoch)

    def batch(self, planned: PlannedBatch) -> MaskedBatch:
        return MaskedBatch(**hide(self.texts, planned, self.masking, self.seed))


def hide(texts: TextRows, planned: PlannedBatch, masking: Masking, seed: Sequence[int]) -> MaskedTensors:
    """A planned batch with some of its tokens hidden."""
    tensors = texts.tensors(planned)
    ids, lengths = tensors["ids"].numpy(), tensors["lengths"].numpy()
    real = lengths.copy()
    real[len(planned.rows) :] = 0  # in filler rows nothing is hidden
    generator = np.random.default_rng([*seed, int(planned.rows[0])])
    changed, places = masking(ids, real, generator)
    return {
        "ids": torch.from_numpy(changed),
        "lengths": tensors["lengths"],
        "segments": tensors["segments"],
        "places": torch.from_numpy(places),
        "wanted": torch.from_numpy(ids.ravel()[places]),
    }


def continuations(tokens: Sequence[str]) -> Flags:
    """Whether each token of a vocabulary goes on with the word before it. [v]

    WordPiece marks that with `##`; others mark the space that a word begins with. Punctuation is a word of its own.
    """
    if any(token.startswith(CONTINUES) for token in tokens):
        return np.array([token.startswith(CONTINUES) for token in tokens])
    if not any(token.startswith(SPACE_MARKS) for token in tokens):
        raise QkvError("This tokenizer does not mark where words begin or go on: whole words cannot be hidden.")
    return np.array([not token.startswith(SPACE_MARKS) and any(map(str.isalnum, token)) for token in tokens])
