"""Letters that are heard frame by frame: the vocabulary of a CTC model, `vocab.json` in a published folder.

One token is the blank, which stands for no letter [graves2006 §3.1], and one stands between words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import read_json, write_json

VOCABULARY_FILE, NOTES_FILE, ADDED_FILE = "vocab.json", "tokenizer_config.json", "added_tokens.json"
TOKENIZER_CLASS = "Wav2Vec2CTCTokenizer"
# Keys of tokenizer_config.json that do not change what is read or written here.
_OTHER = frozenset({
    "tokenizer_class", "processor_class", "bos_token", "eos_token", "added_tokens_decoder", "special_tokens_map_file",
    "clean_up_tokenization_spaces", "model_max_length", "name_or_path", "tokenizer_file", "return_attention_mask",
    "do_normalize", "additional_special_tokens", "extra_special_tokens", "special_tokens", "backend", "is_local",
    "local_files_only", "model_specific_special_tokens", "padding_side", "truncation_side",
})  # fmt: skip


@dataclass(frozen=True)
class Letters:
    """Tokens by their ids. A text is its letters with `space` between words."""

    tokens: tuple[str, ...]
    blank: int = 0
    space: int | None = None  # the token between words; None: there is none, and letters are all that is told
    unknown: int | None = None  # what stands for a letter that is not known; None: such a letter is an error
    between: str = " "  # how `space` is written
    fold: bool = False  # tokens are in capitals, and texts in small letters

    def __post_init__(self) -> None:
        if len(set(self.tokens)) != len(self.tokens) or not self.tokens:
            raise QkvError("Letters must be given, and each of them once.")
        for place in (self.blank, self.space, self.unknown):
            if place is not None and not 0 <= place < len(self.tokens):
                raise QkvError(f"There are {len(self.tokens)} letters, so none has the number {place}.")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Letters:
        """All letters of some texts, after the blank, what is unknown, and the space between words."""
        found = sorted(set().union(*texts) - {" "})
        for taken in ("|",):
            if taken in found:
                raise QkvError(f"The texts hold {taken!r}, which stands for the space between words: leave it out.")
        return cls(("<pad>", "<unk>", "|", *found), blank=0, space=2, unknown=1)

    def encode(self, text: str) -> list[int]:
        """A text as letters, words held apart. White space of any length is one space."""
        if any(len(token) > 1 and not _is_special(token) for token in self.tokens):
            raise QkvError("This vocabulary has tokens of several letters, into which texts are not cut here.")
        place = {token: number for number, token in enumerate(self.tokens) if len(token) == 1}
        words = (text.upper() if self.fold else text).split()
        if self.space is None and len(words) > 1:
            raise QkvError("This vocabulary has nothing to stand between words: give one word.")
        ids: list[int] = []
        for number, word in enumerate(words):
            if number:
                ids.append(self.space)  # type: ignore[arg-type]  # checked above
            for letter in word:
                found = place.get(letter, self.unknown)
                if found is None or found in (self.blank, self.space):
                    raise QkvError(f"The letter {letter!r} of {word!r} is not one that this model can hear.")
                ids.append(found)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Letters, one after the other, as a text; blanks must be gone."""
        text = "".join(self.between if number == self.space else self.tokens[number] for number in ids).strip()
        return text.lower() if self.fold else text


def _is_special(token: str) -> bool:
    return token.startswith(("<", "[")) and token.endswith((">", "]"))


def read_letters(folder: Path) -> Letters:
    """The vocabulary of a published folder."""
    folder = Path(folder)
    vocabulary = read_json(folder / VOCABULARY_FILE)
    notes = _object(folder / NOTES_FILE) if (folder / NOTES_FILE).exists() else {}
    if notes.get("tokenizer_class", TOKENIZER_CLASS) not in (TOKENIZER_CLASS, "Wav2Vec2Tokenizer"):
        raise QkvError(f"{folder} has a {notes['tokenizer_class']}; letters are read from a {TOKENIZER_CLASS}.")
    known = _OTHER | {"pad_token", "unk_token", "word_delimiter_token", "replace_word_delimiter_char", "do_lower_case"}
    if unknown := sorted(notes.keys() - known - {"target_lang"}):
        raise QkvError(f"{folder / NOTES_FILE} has keys that could change what is written: {', '.join(unknown)}.")
    nested = isinstance(vocabulary, dict) and any(isinstance(each, dict) for each in vocabulary.values())
    if notes.get("target_lang") is not None or nested:
        raise QkvError(f"{folder} holds vocabularies of several languages: qkv reads one alone.")
    if (folder / ADDED_FILE).exists() and isinstance(vocabulary, dict):
        vocabulary = {**_object(folder / ADDED_FILE), **vocabulary}
    tokens = _in_order(folder / VOCABULARY_FILE, vocabulary)
    place = {token: number for number, token in enumerate(tokens)}
    blank = _token(notes, "pad_token", "<pad>")
    if blank not in place:
        raise QkvError(f"{folder / VOCABULARY_FILE} lacks {blank!r}, the blank that stands for no letter.")
    return Letters(
        tokens,
        blank=place[str(blank)],
        space=place.get(str(_token(notes, "word_delimiter_token", "|"))),
        unknown=place.get(str(_token(notes, "unk_token", "<unk>"))),
        between=str(notes.get("replace_word_delimiter_char", " ")),
        fold=bool(notes.get("do_lower_case", False)),
    )


def _object(file: Path) -> dict[str, Any]:
    found = read_json(file)
    if not isinstance(found, dict):
        raise QkvError(f"{file} must hold an object.")
    return found


def _token(notes: Mapping[str, Any], key: str, usual: str) -> str | None:
    """A special token, which may be written with how it is stripped; None: there is none."""
    given = notes.get(key, usual)
    token = given.get("content") if isinstance(given, dict) else given
    if token is not None and not isinstance(token, str):
        raise QkvError(f"The notes beside the letters give {token!r} as {key}, which should be a text.")
    return token


def _in_order(file: Path, vocabulary: Any) -> tuple[str, ...]:
    numbers = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if not numbers or not all(type(each) is int for each in numbers) or sorted(numbers) != list(range(len(numbers))):
        raise QkvError(f"{file} must give each letter a number of its own, from 0 on without a gap.")
    return tuple(sorted(vocabulary, key=vocabulary.__getitem__))


def write_letters(folder: Path, letters: Letters) -> None:
    """So that the other library writes what we write."""
    folder = Path(folder)
    tokens = letters.tokens
    notes: dict[str, Any] = {
        "tokenizer_class": TOKENIZER_CLASS,
        "pad_token": tokens[letters.blank],
        "unk_token": None if letters.unknown is None else tokens[letters.unknown],
        "word_delimiter_token": None if letters.space is None else tokens[letters.space],
        "replace_word_delimiter_char": letters.between,
        "do_lower_case": letters.fold,
        "bos_token": "<s>" if "<s>" in tokens else None,
        "eos_token": "</s>" if "</s>" in tokens else None,
    }
    write_json(folder / VOCABULARY_FILE, {token: number for number, token in enumerate(tokens)})
    write_json(folder / NOTES_FILE, notes)
