"""A text model with its tokenizer: texts in, and for each what the head says of it.

Shapes: b rows of a batch, s slots.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from qkv.data.batches import ordered_batches
from qkv.data.encoding import Encoding, Limit
from qkv.data.text_rows import TextBatch, TextRows
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, QkvWarning
from qkv.generate.use import ModelUse, answered, row_of
from qkv.models.text_model import TextModel
from qkv.weights.save import save_model

TOKENIZER_FILE = "tokenizer.json"
BATCH_TOKENS = 8192


class TextReader(ModelUse):
    """What all uses of a text model share; each use is a subclass for one kind of head."""

    def __init__(self, model: TextModel, tokenizer: TextTokenizer) -> None:
        self.check_head(model)
        if tokenizer.size > model.vocabulary:
            raise QkvError(
                f"Mismatched tokenizer: it has {tokenizer.size} tokens, but the model was built for "
                f"{model.vocabulary}; it belongs to another model."
            )
        self.model, self.tokenizer = model, tokenizer

    def with_model(self, model: TextModel) -> Self:
        """The same use of another model that reads the same tokens."""
        return type(self)(model, self.tokenizer)

    def save(self, folder: Path | str) -> None:
        save_model(self.model, Path(folder))
        self.tokenizer.save(Path(folder) / TOKENIZER_FILE)

    def limit(self, cut: str = "longest", stride: int | None = None) -> Limit | None:
        """As many tokens as the model reads; None: any number."""
        return None if self.model.longest is None else Limit(self.model.longest, cut, stride)

    def encodings(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[Encoding]:
        """Texts, or with `seconds` pairs of them, as the model reads them; what is longer is cut."""
        if seconds is None:
            return self.tokenizer.encodings(texts, limit=self.limit())
        return self.tokenizer.encode_pairs(texts, seconds, limit=self.limit())

    def rows(self, encodings: Sequence[Encoding]) -> TextRows:
        """Encodings as rows of a data set, without segments where the model cannot tell them apart."""
        pad = self.tokenizer.pad if self.tokenizer.has("pad") else 0  # hidden from every token, so any id will do
        rows = TextRows.from_encodings(encodings, pad=pad)
        return rows if self.model.embed.tells_segments else rows.without_segments()

    def answers(self, encodings: Sequence[Encoding], batch_tokens: int = BATCH_TOKENS) -> list[Any]:
        """What the head says of each row, on the CPU, cut to the row's own tokens where it speaks of tokens."""
        if not encodings:
            return []
        if not all(map(len, encodings)):
            raise QkvError(
                "One of the texts has no token, so there is nothing to read in it: give texts that say something."
            )
        self._doubt(encodings)
        rows = replace(self.rows(encodings), original=np.arange(len(encodings)))
        found: list[Any] = [None] * len(encodings)
        most = max(batch_tokens, max(map(len, encodings)))
        batches = ((places.tolist(), batch) for places, batch in ordered_batches(rows, most))
        for place, answer in answered(self.model, batches, self._read):
            found[place] = answer
        return found

    def _read(self, batch: TextBatch) -> Iterator[Any]:
        moved = batch.to(next(self.model.parameters()).device)
        output = self.model(moved.ids, lengths=moved.lengths, segments=moved.segments)
        for number, length in enumerate(batch.lengths.tolist()):
            yield _of_tokens(row_of(output, number), length, batch.ids.shape[1])

    def _doubt(self, encodings: Sequence[Encoding]) -> None:
        """Texts that the vocabulary hardly knows are read, with a remark: the answer is about nothing."""
        if not self.tokenizer.has("unknown"):
            return
        marks = [mark for encoding in encodings for mark in zip(encoding.ids, encoding.special, strict=True)]
        own = [token for token, special in marks if not special]
        unknown = own.count(self.tokenizer.unknown)
        if 4 * unknown > len(own):
            warnings.warn(
                f"The model's vocabulary does not know {unknown:,} of the {len(own):,} pieces of these texts"
                ": are they of the kind it reads? One of molecules may need --split smiles, in Python "
                'load(…, split="smiles").',
                QkvWarning,
                stacklevel=3,
            )


def _of_tokens(answer: Any, length: int, slots: int) -> Any:
    """An answer without what it says of padding: one of as many entries as slots speaks of tokens."""
    if isinstance(answer, tuple):
        return type(answer)(*(_of_tokens(part, length, slots) for part in answer))
    return answer[:length] if answer.ndim == 2 and len(answer) == slots else answer
