"""Tokens of a transcript as words, each with its time."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qkv.data.text_stream import TextStream
from qkv.data.tokenizer import TextTokenizer
from qkv.generate.alignment import Aligned

OPENING = set("\"'“¿([{-")  # signs that belong to the next word
CLOSING = set("\"'.。,，!！?？:：”)]}、")  # signs that belong to the word before
UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # languages that are written without spaces


@dataclass(frozen=True)
class Word:
    """One word as it was said, signs included. Times are seconds from the beginning of the sound."""

    text: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class Piece:
    """Some tokens that spell a text together."""

    text: str
    first: int  # the place of its first token among all
    count: int


def words_of(tokenizer: TextTokenizer, ids: Sequence[int], language: str | None) -> list[Piece]:
    """Tokens put together to words, signs to the words they belong to. No two words share a token."""
    return _with_signs(_put_together(_pieces(tokenizer, ids), spaced=language not in UNSPACED))


def _pieces(tokenizer: TextTokenizer, ids: Sequence[int]) -> list[Piece]:
    """The fewest tokens each that spell whole characters."""
    stream, pieces, first = TextStream(tokenizer), list[Piece](), 0
    for place, token in enumerate(ids):
        if text := stream.add(token):
            pieces.append(Piece(text, first, place + 1 - first))
            first = place + 1
    if rest := stream.end():
        pieces.append(Piece(rest, first, len(ids) - first))
    return pieces


def _put_together(pieces: Sequence[Piece], spaced: bool) -> list[Piece]:
    words: list[Piece] = []
    for piece in pieces:
        begins = not spaced or piece.text.startswith(" ") or piece.text.strip() in string.punctuation
        if words and (not begins or not words[-1].text.strip()):
            words[-1] = _joined(words[-1], piece)
        else:
            words.append(piece)
    return words


def _with_signs(words: Sequence[Piece]) -> list[Piece]:
    found: list[Piece] = []
    for word in words:
        sign = word.text.strip()
        opens = found and found[-1].text.startswith(" ") and found[-1].text.strip() in OPENING
        if found and (opens or (sign in CLOSING and not word.text.startswith(" "))):
            found[-1] = _joined(found[-1], word)
        else:
            found.append(word)
    return found


def _joined(first: Piece, second: Piece) -> Piece:
    return replace(first, text=first.text + second.text, count=first.count + second.count)


def timed(pieces: Sequence[Piece], aligned: Aligned, offset: float, step: float) -> list[Word]:
    """Words with their times: `step` seconds a slot, `offset` seconds before the first."""
    words = []
    for piece in pieces:
        after = piece.first + piece.count
        sure = aligned.probabilities[piece.first : after]
        begin, end = aligned.begins[piece.first], aligned.begins[after]
        words.append(Word(piece.text.strip(), offset + begin * step, offset + end * step, sum(sure) / len(sure)))
    return words
