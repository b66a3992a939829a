"""How likely a language model finds whole texts.

Shapes: b rows, s slots, d width, v vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.models.text_model import TextModel
from qkv.parts.precision import widened

BATCH_TOKENS = 4096
LOGITS_AT_ONCE = 512  # tokens; bounds the table of logits


@dataclass(frozen=True)
class TextScore:
    """Log-probabilities of a text's tokens, each given those before it."""

    ids: list[int]  # of the tokens that were predicted
    log_probabilities: list[float]
    bytes: int  # of the text that those tokens stand for

    @property
    def log_probability(self) -> float:
        return sum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """exp of the mean surprise of a token."""
        return math.exp(-self.log_probability / max(1, len(self.ids)))

    @property
    def bits_per_byte(self) -> float:
        """The mean surprise of a byte: it compares models with different tokenizers."""
        return -self.log_probability / math.log(2) / max(1, self.bytes)


@torch.inference_mode()
def score_texts(
    model: TextModel, tokenizer: TextTokenizer, texts: Sequence[str], *, stride: int | None = None
) -> list[TextScore]:
    """The score of each text, in their order.

    The first token is predicted from the tokenizer's start token; where there is none, it is not predicted, and its
    bytes do not count. A text longer than the model's window is an error, unless `stride` is given: then the window
    moves on by so many tokens at a time, and each token is predicted once, from all that is in the first window that
    holds it.
    """
    if isinstance(texts, str):
        raise QkvError("Give a list of texts, not a single text: put the one text into brackets.")
    rows = [_Row(tokenizer, text) for text in texts]
    for row in rows:
        row.cut(model.longest, stride)
    pieces = sorted((piece for row in rows for piece in row.pieces), key=lambda piece: len(piece.ids))
    batch: list[_Piece] = []
    for piece in pieces:
        if batch and (len(batch) + 1) * len(piece.ids) > BATCH_TOKENS:
            _predict(model, batch)
            batch = []
        batch.append(piece)
    if batch:
        _predict(model, batch)
    return [row.score() for row in rows]


@dataclass
class _Piece:
    """A window of a text; the predictions of its last `wanted` tokens are wanted."""

    ids: list[int]
    wanted: int
    log_probabilities: list[float]


class _Row:
    def __init__(self, tokenizer: TextTokenizer, text: str) -> None:
        plain = tokenizer.encode([text])[0]
        if not plain:
            raise QkvError("An empty text has no score.")
        started = tokenizer.has("start")
        self.ids = [tokenizer.start, *plain] if started else plain
        first = "" if started else tokenizer.decode(plain[:1], whole=True)
        self.bytes = len(text.encode()) - len(first.encode())
        self.pieces: list[_Piece] = []

    def cut(self, window: int | None, stride: int | None) -> None:
        ids, size = self.ids, len(self.ids) - 1  # the last token is predicted but not read
        if window is None or size <= window:
            self.pieces = [_Piece(ids, size, [])]
            return
        if stride is None:
            raise QkvError(
                f"The text has {size} tokens and this model reads at most {window}: give a stride by which its window "
                "moves on."
            )
        if not 1 <= stride <= window:
            raise QkvError(f"A window of {window} tokens moves on by 1 to {window}, not by {stride}.")
        predicted = 0
        for start in range(0, size, stride):
            end = min(start + window, size)
            self.pieces.append(_Piece(ids[start : end + 1], end - predicted, []))
            predicted = end
            if end == size:
                break

    def score(self) -> TextScore:
        found = [value for piece in self.pieces for value in piece.log_probabilities]
        return TextScore(self.ids[1:], found, self.bytes)


def _predict(model: TextModel, pieces: Sequence[_Piece]) -> None:
    device = next(model.parameters()).device
    lengths = torch.tensor([len(piece.ids) - 1 for piece in pieces])  # [b]
    ids = torch.zeros(len(pieces), int(lengths.max()) + 1, dtype=torch.long)
    for row, piece in enumerate(pieces):
        ids[row, : len(piece.ids)] = torch.tensor(piece.ids)
    if not int(lengths.max()):
        return
    ids, lengths = ids.to(device), lengths.to(device)
    given = ids[:, :-1]
    states = model.states(given, model.context(given, lengths=lengths))  # [b s d]
    found = torch.cat(
        [
            _log_probabilities(model, states[:, start : start + size], ids[:, 1 + start : 1 + start + size])
            for size in [max(1, LOGITS_AT_ONCE // len(pieces))]
            for start in range(0, given.shape[1], size)
        ],
        1,
    ).tolist()
    for row, piece in zip(found, pieces, strict=True):
        end = len(piece.ids) - 1
        piece.log_probabilities = row[end - piece.wanted : end]


def _log_probabilities(model: TextModel, states: Tensor, wanted: Tensor) -> Tensor:
    """[b s d] [b s] → [b s]"""
    logs = widened(model.head(states)).log_softmax(-1)
    return logs.gather(2, wanted[..., None])[..., 0]
