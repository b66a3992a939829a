"""A text model with its tokenizer: texts in, and for each what the head says of it.

Shapes: b rows of a batch, s slots.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from qkv.data.encoding import Encoding, Limit, check_texts
from qkv.data.lines import LineBatch, line_batches
from qkv.data.text_rows import TextBatch, TextRows
from qkv.data.token_rows import Ints, TokenRows, stretches_of
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, QkvWarning
from qkv.generate.use import ModelUse, answered
from qkv.models.text_model import TextModel
from qkv.parts.attention.in_line import InLine
from qkv.parts.device import at_once
from qkv.weights.save import save_model

TOKENIZER_FILE = "tokenizer.json"
BATCH_TOKENS = 2048  # read together on a CPU: what is between two products stays near it
BATCH_TOKENS_ON_GPU = 65_536  # enough to keep it busier than the host that tells it what to do
AT_ONCE = 1 << 18  # characters that are cut into tokens, a batch or so, while the model reads what was cut before


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

    def read(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, batch_tokens: int | None = None
    ) -> list[Any]:
        """What the head says of each text, or with `seconds` of each pair, on the CPU; what is longer is cut.

        For heads that need nothing of a text but its tokens. Texts are cut into tokens some at a time, long ones first,
        while the model reads those before them.
        """
        if seconds is not None:
            return self.answers(self.encodings(texts, seconds), batch_tokens)
        texts = check_texts(texts)
        return self._found(len(texts), self._parts(texts), batch_tokens)

    def vectors(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, batch_tokens: int | None = None
    ) -> Tensor:
        """The same of heads that answer with a vector, all in one: no text costs the host anything by itself. [n d]"""
        texts = check_texts(texts)
        parts = self._parts(texts) if seconds is None else self._whole(self.encodings(texts, seconds))
        return self._together(len(texts), parts, batch_tokens)

    def ids(self, texts: Sequence[str]) -> TokenRows:
        """The tokens of texts, as the model reads them; what is longer is cut."""
        return self.tokenizer.encode_rows(texts, special=True, limit=self.limit())

    def answers(self, encodings: Sequence[Encoding], batch_tokens: int | None = None) -> list[Any]:
        """What the head says of each row, on the CPU, of the row's own tokens where it speaks of tokens.

        At most `batch_tokens` are read together; None: as many as suit the device.
        """
        return self._found(len(encodings), self._whole(encodings), batch_tokens)

    def _parts(self, texts: Sequence[str]) -> Iterator[TextRows]:
        """Texts as rows, some at a time, long ones first."""
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        order = np.argsort(-sizes, kind="stable")
        for first, last in stretches_of(sizes[order], AT_ONCE):
            places = order[first:last]
            yield TextRows(self.ids([texts[place] for place in places.tolist()]), None, places)

    def _whole(self, encodings: Sequence[Encoding]) -> list[TextRows]:
        """All as one part, if there are any."""
        return [replace(self.rows(encodings), original=np.arange(len(encodings)))] if encodings else []

    def _found(self, count: int, parts: Iterable[TextRows], batch_tokens: int | None) -> list[Any]:
        """The answers to so many rows, each by itself."""
        found: list[Any] = [None] * count
        for places, batch, output in self._answered(parts, batch_tokens):
            for place, answer in zip(places.tolist(), _rows(output, batch), strict=True):
                found[place] = answer
        return found

    def _together(self, count: int, parts: Iterable[TextRows], batch_tokens: int | None) -> Tensor:
        """The answers to so many rows, which are vectors. [count d]"""
        answers: list[tuple[Tensor, Tensor]] = []
        for places, _, answer in self._answered(parts, batch_tokens):
            answers.append((torch.from_numpy(places), answer))
        if not answers:
            return torch.empty(0, 0)
        found = answers[0][1].new_empty(count, answers[0][1].shape[1])
        for rows, answer in answers:
            found.index_copy_(0, rows, answer)
        return found

    def _answered(
        self, parts: Iterable[TextRows], batch_tokens: int | None
    ) -> Iterator[tuple[Ints, LineBatch | TextBatch, Any]]:
        """What is said of rows that come in parts, batch after batch, with the places of its rows."""
        device = next(self.model.parameters()).device
        most = batch_tokens or at_once(BATCH_TOKENS_ON_GPU, BATCH_TOKENS, device)
        in_line, doubt = self.model.in_line, Doubt(self.tokenizer)

        def batches() -> Iterator[tuple[list[Ints], LineBatch | TextBatch]]:
            for rows in parts:
                doubt.count(rows)
                longest = max(most, int(rows.tokens.lengths.max()))
                made = line_batches(rows, longest) if in_line else _padded_batches(rows, longest)
                for places, batch in made:
                    yield [places], batch.pin_memory() if device.type == "cuda" else batch

        together = answered(self.model, batches(), self._ask, lambda output, batch: [(batch, output)])
        for places, (batch, output) in together:
            yield places, batch, output
        doubt.tell()

    def _ask(self, batch: LineBatch | TextBatch) -> Any:
        moved = batch.to(next(self.model.parameters()).device)
        if isinstance(moved, LineBatch):
            tokens = InLine(
                moved.ids.shape[1],
                documents=moved.documents,
                lengths=moved.lengths,
                bounds=moved.bounds,
                positions=moved.positions,
            )
            return self.model(moved.ids, tokens=tokens, segments=moved.segments)
        assert isinstance(batch, TextBatch)
        whole = int(batch.lengths.min()) == batch.ids.shape[1]  # no row has padding, so nothing needs to be hidden
        return self.model(moved.ids, lengths=None if whole else moved.lengths, segments=moved.segments)


def _padded_batches(rows: TextRows, longest: int) -> Iterator[tuple[Ints, TextBatch]]:
    from qkv.data.batches import ordered_batches  # with all that training is given its rows by

    return ordered_batches(rows, longest)


class Doubt:
    """Counts what the vocabulary does not know. Texts that it hardly knows are read, with a remark: the answer is about
    nothing."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.unknown = tokenizer.unknown if tokenizer.has("unknown") else None
        self.special = np.array(sorted(tokenizer.special_ids - {self.unknown}), dtype=np.int32)
        self.counted, self.own = 0, 0

    def count(self, rows: TextRows) -> None:
        if not len(rows) or not rows.tokens.lengths.all():
            raise QkvError(
                "One of the texts has no token, so there is nothing to read in it: give texts that say something."
            )
        if self.unknown is not None:
            self.counted += int((rows.tokens.ids == self.unknown).sum())
            self.own += int((~np.isin(rows.tokens.ids, self.special)).sum())

    def tell(self) -> None:
        if 4 * self.counted > self.own:
            warnings.warn(
                f"The model's vocabulary does not know {self.counted:,} of the {self.own:,} pieces of these texts"
                ": are they of the kind it reads? One of molecules may need --split smiles, in Python "
                'load(…, split="smiles").',
                QkvWarning,
                stacklevel=6,
            )


def _rows(output: Any, batch: LineBatch | TextBatch) -> Iterable[Any]:
    """What was said of each text. An answer of three dimensions speaks of tokens: of those of the text alone."""
    if isinstance(output, tuple):
        return [type(output)(*parts) for parts in zip(*(_rows(part, batch) for part in output), strict=True)]
    if output.ndim < 3:
        return list(output)
    if isinstance(batch, LineBatch):
        return list(output[0].split(batch.lengths))
    return [row[:length] for row, length in zip(output, batch.lengths.tolist(), strict=True)]
