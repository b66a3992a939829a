"""How likely a language model finds whole texts.

Shapes: b rows, s slots, d width, v vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.models.text_model import TextModel
from qkv.parts.embed import check_ids
from qkv.parts.precision import widened

BATCH_TOKENS = 4096
LOGITS_AT_ONCE = 512  # tokens; bounds the table of logits


@dataclass(frozen=True)
class TextScore:
    """Log-probabilities of a text's tokens, each given those before it."""

    ids: list[int]  # of the tokens that were predicted
    log_probabilities: list[float]
    likeliest: list[bool]  # whether greedy decoding would have written the token
    bytes: int  # of the text that those tokens stand for

    @property
    def greedy(self) -> bool:
        """Whether greedy decoding would have written all of them."""
        return all(self.likeliest)

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


@dataclass(frozen=True)
class ScoredIds:
    """Tokens to score, and those that stand before them."""

    before: list[int]  # one at least
    wanted: list[int]
    bytes: int  # that the wanted ones stand for


def score_texts(
    model: TextModel, tokenizer: TextTokenizer, texts: Sequence[str], *, stride: int | None = None
) -> list[TextScore]:
    """The score of each text, in their order; `stride` as in `score_rows`.

    The first token is predicted from the tokenizer's start token; where there is none, it is not predicted, and its
    bytes do not count.
    """
    if isinstance(texts, str):
        raise QkvError("Give a list of texts, not a single text: put the one text into brackets.")
    rows = []
    for text in texts:
        ids, size = tokenizer.encode([text])[0], len(text.encode())
        if not ids:
            raise QkvError("An empty text has no score.")
        if tokenizer.has("start"):
            rows.append(ScoredIds([tokenizer.start], ids, size))
        else:
            rows.append(ScoredIds(ids[:1], ids[1:], size - len(tokenizer.decode(ids[:1], whole=True).encode())))
    return score_rows(model, rows, stride=stride)


@torch.inference_mode()
def score_rows(model: TextModel, rows: Sequence[ScoredIds], *, stride: int | None = None) -> list[TextScore]:
    """The score of each row's wanted tokens.

    A row longer than the model's window is an error, unless `stride` is given: then the window moves on by so many
    tokens at a time, and each token is predicted once, in the first window that holds it.
    """
    pieces = [_pieces(row, model.longest, stride) for row in rows]
    batch: list[_Piece] = []
    for piece in sorted((piece for row in pieces for piece in row if piece.wanted), key=lambda piece: len(piece.ids)):
        if batch and (len(batch) + 1) * len(piece.ids) > BATCH_TOKENS:
            _predict(model, batch)
            batch = []
        batch.append(piece)
    if batch:
        _predict(model, batch)
    return [
        TextScore(
            row.wanted,
            [value for piece in parts for value in piece.log_probabilities],
            [value for piece in parts for value in piece.likeliest],
            row.bytes,
        )
        for row, parts in zip(rows, pieces, strict=True)
    ]


@dataclass
class _Piece:
    """A window of a text; the predictions of its last `wanted` tokens are wanted."""

    ids: list[int]
    wanted: int
    log_probabilities: list[float] = field(default_factory=list)
    likeliest: list[bool] = field(default_factory=list)


def _pieces(row: ScoredIds, window: int | None, stride: int | None) -> list[_Piece]:
    ids = [*row.before, *row.wanted]
    size = len(ids) - 1  # the last token is predicted but not read
    if window is None or size <= window:
        return [_Piece(ids, len(row.wanted))]
    if stride is None:
        raise QkvError(
            f"The text has {size} tokens and this model reads at most {window}: give a stride by which its window "
            "moves on."
        )
    if not 1 <= stride <= window:
        raise QkvError(f"A window of {window} tokens moves on by 1 to {window}, not by {stride}.")
    pieces, predicted = [], len(row.before) - 1
    for start in range(0, size, stride):
        end = min(start + window, size)
        pieces.append(_Piece(ids[start : end + 1], max(0, end - predicted)))
        predicted = max(predicted, end)
        if end == size:
            break
    return pieces


def _predict(model: TextModel, pieces: Sequence[_Piece]) -> None:
    device = next(model.parameters()).device
    lengths = torch.tensor([len(piece.ids) - 1 for piece in pieces])  # [b]
    ids = torch.zeros(len(pieces), int(lengths.max()) + 1, dtype=torch.long)
    for row, piece in enumerate(pieces):
        ids[row, : len(piece.ids)] = torch.tensor(piece.ids)
    check_ids(ids, model.vocabulary)
    ids, lengths = ids.to(device), lengths.to(device)
    given = ids[:, :-1]
    states = model.states(given, model.context(given, lengths=lengths))  # [b s d]
    size = max(1, LOGITS_AT_ONCE // len(pieces))
    found = [
        _log_probabilities(model, *parts)
        for parts in zip(states.split(size, 1), ids[:, 1:].split(size, 1), strict=True)
    ]
    values, best = (torch.cat(parts, 1).tolist() for parts in zip(*found, strict=True))
    for number, piece in enumerate(pieces):
        end = len(piece.ids) - 1
        piece.log_probabilities = values[number][end - piece.wanted : end]
        piece.likeliest = best[number][end - piece.wanted : end]


def _log_probabilities(model: TextModel, states: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Of the wanted tokens, and whether they are the likeliest. [b s d] [b s] → [b s] [b s]"""
    logs = widened(model.head(states)).log_softmax(-1)
    return logs.gather(2, wanted[..., None])[..., 0], logs.argmax(-1) == wanted
