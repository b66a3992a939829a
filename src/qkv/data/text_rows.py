"""Encoded texts, or pairs of texts, as rows that a model reads whole.

Shapes: b rows of a batch, s slots, n rows of the data set.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self, TypedDict

import numpy as np
import torch
from torch import Tensor

from qkv.data.encoding import Encoding
from qkv.data.plan import PlannedBatch
from qkv.data.rows import TensorBatch, single
from qkv.data.token_rows import Ints, TokenRows
from qkv.errors import QkvError


@dataclass(frozen=True)
class TextBatch(TensorBatch):
    """Right-padded texts; special tokens included."""

    ids: Tensor  # [b s] long
    lengths: Tensor  # [b]
    segments: Tensor | None  # [b s] long: the number of each token's text where a row holds two; None: all 0


class TextTensors(TypedDict):
    """The fields of a `TextBatch`, for those that have more."""

    ids: Tensor
    lengths: Tensor
    segments: Tensor | None


@dataclass(frozen=True)
class TextRows:
    """All the texts of a data set as ids, special tokens included."""

    tokens: TokenRows
    segments: TokenRows | None  # beside the tokens; None where every segment is 0
    original: Ints  # [n]: the place of each row among the texts that were given

    @classmethod
    def from_encodings(cls, encodings: Iterable[Encoding], *, pad: int) -> "TextRows":
        encodings = list(encodings)
        if not encodings:
            raise QkvError("There is no text: at least one is needed.")
        tokens = TokenRows.from_lists((encoding.ids for encoding in encodings), pad)
        segments = TokenRows.from_lists((encoding.segments for encoding in encodings), 0)
        original = np.array([encoding.row for encoding in encodings])
        return cls(tokens, segments if segments.ids.any() else None, original)

    def without_segments(self) -> "TextRows":
        """The same texts for a model that cannot tell segments apart."""
        return replace(self, segments=None)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        return single(self.tokens.lengths)

    def batch(self, planned: PlannedBatch) -> TextBatch:
        return TextBatch(**self.tensors(planned))

    def tensors(self, planned: PlannedBatch) -> TextTensors:
        ids, lengths = self.tokens.rectangle(planned.rows, planned.source_width, planned.filler)
        segments = None
        if self.segments is not None:
            padded, _ = self.segments.rectangle(planned.rows, planned.source_width, planned.filler)
            segments = torch.from_numpy(padded)
        return {"ids": torch.from_numpy(ids), "lengths": torch.from_numpy(lengths), "segments": segments}


@dataclass(frozen=True)
class TaskRows:
    """Texts with something to learn about them: what rows of every task have in common."""

    texts: TextRows

    def without_segments(self) -> Self:
        """The same rows for a model that cannot tell segments apart."""
        return replace(self, texts=self.texts.without_segments())

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def original(self) -> Ints:
        return self.texts.original

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        return self.texts.sizes


def with_filler(values: np.ndarray, planned: PlannedBatch, nothing: float) -> Tensor:
    """The values of a batch's rows, and `nothing` for each filler row. [n] → [b]"""
    filler = np.full(planned.filler, nothing, values.dtype)
    return torch.from_numpy(np.concatenate([values[planned.rows], filler]))
