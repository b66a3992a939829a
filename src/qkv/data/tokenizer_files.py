"""The two files of a saved tokenizer: `tokenizer.json`, and `tokenizer_config.json` with the notes beside it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from qkv.data.token_roles import LARGEST_VOCABULARY, TokenizerNotes
from qkv.errors import QkvError
from qkv.files import json_of, read_bytes


def raised_by_library(kind: type[BaseException] | None) -> bool:
    """Says whether the tokenizers library complains about what it was given.

    It raises a bare `Exception`, or, where it did not look closely enough, a panic of its own, which has no name to
    import. Errors with another type are bugs or interruptions, and still show as what they are.
    """
    return kind is Exception or (kind is not None and kind.__name__ == "PanicException")


class LibraryErrors:
    """Turns the library's complaints about a file into a `QkvError`."""

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if raised_by_library(kind):
            raise QkvError(f"{self.what}: {error}.") from error


def read_text(file: Path) -> str:
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise QkvError(f"{file} is not a tokenizer file: it is not text.") from error


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file that holds one object; an empty one where there is no file."""
    if not file.exists():
        return {}
    content = json_of(read_text(file), file)
    if not isinstance(content, dict):
        raise QkvError(f"The file {file} should hold a JSON object.")
    return content


def read_tokenizer_file(file: Path) -> Tokenizer:
    """Read a `tokenizer.json`.

    The library reads the scores of a unigram model inexactly in the last digit, which decides between equally likely
    cuts of a text like "aaa"; so they are read here, and a saved tokenizer cuts as it did.
    """
    content = read_text(file)
    with LibraryErrors(f"{file} is not a whole tokenizer file"):
        tokenizer = Tokenizer.from_str(content)
        if isinstance(tokenizer.model, models.Unigram):
            state = json_of(content, file)["model"]
            pieces = [(piece, score) for piece, score in state["vocab"]]
            fallback = state.get("byte_fallback") or False
            tokenizer.model = models.Unigram(pieces, unk_id=state.get("unk_id"), byte_fallback=fallback)
        return tokenizer


def read_ids(file: Path) -> dict[str, int]:
    """A `vocab.json`: each token with its number."""
    vocabulary = read_object(file)
    for token, number in vocabulary.items():
        if not isinstance(number, int) or not 0 <= number < LARGEST_VOCABULARY:
            raise QkvError(f"{file} is not a vocabulary: it numbers {token!r} as {number!r}.")
    if not vocabulary:
        raise QkvError(f"{file} is not a vocabulary: it holds no tokens.")
    return vocabulary


def read_merges(file: Path) -> list[tuple[str, str]]:
    """A `merges.txt`: two tokens a line, behind a line that tells the version."""
    lines = [line.removesuffix("\r") for line in read_text(file).split("\n")]
    merges = []
    for number, line in enumerate(lines, start=1):
        if line and not line.startswith("#version"):
            left, _, right = line.partition(" ")
            if not left or not right or " " in right:
                raise QkvError(f"Line {number} of {file} should hold two tokens with a space between them: {line!r}.")
            merges.append((left, right))
    return merges


def check_merges(merges: Iterable[tuple[str, str]], vocabulary: Mapping[str, int], where: str) -> None:
    """The library falls over merges of tokens that are not there, so they are looked at first."""
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in vocabulary:
                raise QkvError(
                    f"{where} has a merge of {left!r} and {right!r}, but {token!r} is not in the vocabulary."
                )


def notes_file(file: Path) -> Path:
    """Where the notes of a tokenizer file stand: `tokenizer_config.json` beside `tokenizer.json`."""
    return file.with_name(f"{file.stem}_config.json")


def write_tokenizer_file(file: Path, tokenizer: Tokenizer, notes: TokenizerNotes, roles: Mapping[str, str]) -> None:
    published = json.dumps(notes.published(roles), indent=2, ensure_ascii=False)
    try:
        file.write_text(tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
        notes_file(file).write_text(published + "\n", encoding="utf-8", newline="\n")
    except OSError as error:
        raise QkvError(f"The tokenizer file {file} cannot be written: {error.strerror}.") from error
