"""SentencePiece models: reading the file, and cutting text as the SentencePiece library does.

The file is a protocol buffer: numbered fields, each a number, four or eight bytes, or a length and as many bytes. Only
the fields that say how to cut text are read here; those that record how the model was trained are passed over.
"""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from qkv.data.tokenizer_files import LibraryErrors
from qkv.errors import QkvError
from qkv.files import read_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # kinds of pieces
UNIGRAM, BPE = 1, 2  # kinds of models
NEVER = 1000.0  # how much less likely than all others a piece is that text must not give
USER_PENALTY = 0.1
SPACE = "▁"
LONGEST_NUMBER = 10  # bytes of a variable-length number: seven bits in each


@dataclass(frozen=True)
class Piece:
    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True)
class SentencePieceModel:
    """What a SentencePiece file says about cutting text; the defaults are those of the format."""

    pieces: tuple[Piece, ...]
    kind: int = UNIGRAM
    byte_fallback: bool = False
    characters: bytes = b""  # how characters are normalised, in the library's compiled form
    adds_space: bool = True  # one before the text, so that its first word is cut like others
    removes_spaces: bool = True  # at both ends, and all but one in between

    def __post_init__(self) -> None:
        if strange := next((piece for piece in self.pieces if not math.isfinite(piece.score)), None):
            raise QkvError(
                f"The tokenizer gives the piece {strange.text!r} the score {strange.score}: it is no number."
            )

    def index(self, kind: int) -> int | None:
        """The place of the first piece of a kind."""
        return next((place for place, piece in enumerate(self.pieces) if piece.kind == kind), None)


def read_sentencepiece(file: Path) -> SentencePieceModel:
    """Read a `spiece.model`, `tokenizer.model` or `source.spm`."""
    content = read_bytes(file)
    try:
        model = parsed(content)
    except (ValueError, struct.error, UnicodeDecodeError) as error:
        raise QkvError(f"{file} is not a whole SentencePiece model: {error}.") from error
    if not model.pieces:
        raise QkvError(f"{file} is not a SentencePiece model: it holds no pieces.")
    if model.kind not in (UNIGRAM, BPE):
        raise QkvError(f"{file} is a SentencePiece model of whole words or characters: it should be unigram or bpe.")
    return model


def parsed(content: bytes) -> SentencePieceModel:
    pieces, trainer, normalizer = [], {}, {}
    for number, value in fields(content):
        if number == 1:
            piece = dict(fields(inside(value)))
            score = struct.unpack("<f", inside(piece[2]))[0] if 2 in piece else 0.0
            pieces.append(Piece(inside(piece.get(1, b"")).decode(), score, whole(piece.get(3, NORMAL))))
        elif number == 2:
            trainer = dict(fields(inside(value)))
        elif number == 3:
            normalizer = dict(fields(inside(value)))
    return SentencePieceModel(
        pieces=tuple(pieces),
        kind=whole(trainer.get(3, UNIGRAM)),
        byte_fallback=bool(trainer.get(35, 0)),
        characters=inside(normalizer.get(2, b"")),
        adds_space=bool(normalizer.get(3, 1)),
        removes_spaces=bool(normalizer.get(4, 1)),
    )


def fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The numbered fields of a message: numbers as they are, all else as bytes."""
    place = 0
    while place < len(content):
        key, place = variable_number(content, place)
        number, form = key >> 3, key & 7
        if form == 0:
            value, place = variable_number(content, place)
            yield number, value
            continue
        if form == 2:
            length, place = variable_number(content, place)
        elif form in (1, 5):
            length = 8 if form == 1 else 4
        else:
            raise ValueError(f"a field has the form {form}, which does not exist")
        if place + length > len(content):
            raise ValueError("it ends in the middle of a field")
        yield number, content[place : place + length]
        place += length


def variable_number(content: bytes, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, least first, and the place behind it."""
    number = 0
    for position, byte in enumerate(content[place : place + LONGEST_NUMBER]):
        number |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return number, place + position + 1
    raise ValueError("it ends in the middle of a number")


def inside(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("there is a number where text was expected")
    return value


def whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("there is text where a number was expected")
    return value


def sentencepiece_tokenizer(model: SentencePieceModel, merges: Sequence[tuple[str, str]] | None = None) -> Tokenizer:
    """A tokenizer that cuts as the SentencePiece library does; control pieces match only where that is allowed."""
    tokenizer = Tokenizer(cutter(model, merges=merges))
    tokenizer.normalizer = normalizer_of(model)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.adds_space:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    tokenizer.decoder = decoders.Sequence(steps)
    add_pieces(tokenizer, model)
    return tokenizer


def normalizer_of(model: SentencePieceModel) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.characters:
        steps.append(compiled(model.characters))
    if model.removes_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.adds_space:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def compiled(characters: bytes) -> normalizers.Normalizer:
    with LibraryErrors("The SentencePiece model's table of characters is broken"):
        return normalizers.Precompiled(characters)


def add_pieces(tokenizer: Tokenizer, model: SentencePieceModel) -> None:
    """Let control pieces match where special tokens are allowed, and those that a user defined before others merge."""
    for piece in model.pieces:
        if piece.kind in (CONTROL, UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(piece.text, special=True, normalized=False)])
        elif piece.kind == USER_DEFINED and model.kind == BPE:
            tokenizer.add_tokens([AddedToken(piece.text, special=False, normalized=False)])


def cutter(
    model: SentencePieceModel,
    *,
    vocabulary: Mapping[str, int] | None = None,
    merges: Sequence[tuple[str, str]] | None = None,
) -> models.Model:
    """The model itself; `vocabulary` gives the pieces other ids than their places, `merges` the order of a BPE."""
    unknown = model.index(UNKNOWN)
    if model.kind == BPE:
        ids = {piece.text: place for place, piece in enumerate(model.pieces)}
        name = None if unknown is None else model.pieces[unknown].text
        order = merges if merges is not None else merges_of(model.pieces)
        with LibraryErrors("The pieces of the SentencePiece model do not fit together"):
            return models.BPE(
                vocab=ids, merges=list(order), unk_token=name, fuse_unk=True, byte_fallback=model.byte_fallback
            )
    # User-defined pieces are cut out of any text that has them: they score as well as if each character were a piece.
    best = max((piece.score for piece in model.pieces if piece.kind == NORMAL), default=0.0)
    scores = {
        piece.text: len(piece.text) * best - USER_PENALTY if piece.kind == USER_DEFINED else piece.score
        for piece in model.pieces
    }
    if vocabulary is not None:
        # Pieces that only the vocabulary knows keep their ids; those that only the model knows come behind.
        never = min(scores.values()) - NEVER
        names = sorted(vocabulary, key=lambda name: vocabulary[name])
        alone = {name: score for name, score in scores.items() if name not in vocabulary}
        scores = {name: scores.get(name, never) for name in names} | alone
        unknown = None if unknown is None else list(scores).index(model.pieces[unknown].text)
    with LibraryErrors("The pieces of the SentencePiece model do not fit together"):
        return models.Unigram(list(scores.items()), unk_id=unknown, byte_fallback=model.byte_fallback)


def merges_of(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """The merges behind the pieces of a BPE model: two pieces make a third one, the likeliest first.

    The file keeps the result of each merge, not its halves, so every way to halve a piece counts.
    """
    known = {piece.text: place for place, piece in enumerate(pieces) if piece.kind in (NORMAL, USER_DEFINED, UNUSED)}
    ranked = []
    for text, place in known.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in known and right in known:
                ranked.append((-pieces[place].score, known[left], known[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]
