"""The two files of a saved tokenizer: `tokenizer.json`, and `tokenizer_config.json` with the notes beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from qkv.data.token_roles import TokenizerNotes
from qkv.errors import QkvError


class LibraryErrors:
    """Turns what the tokenizers library raises into a `QkvError`.

    For a file that it cannot read the library raises a bare `Exception`. Only that very type is turned, so that errors
    with a type of their own, which are bugs or interruptions, still show as what they are.
    """

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is Exception:
            raise QkvError(f"{self.what}: {error}.") from error


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise QkvError(f"{file} is not a tokenizer file: it is not text.") from error
    except OSError as error:
        raise QkvError(f"The tokenizer file {file} cannot be read: {error.strerror}.") from error


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file that holds one object; an empty one where there is no file."""
    if not file.exists():
        return {}
    try:
        content = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise QkvError(f"The file {file} is not whole JSON ({error}); it was cut short or edited.") from error
    if not isinstance(content, dict):
        raise QkvError(f"The file {file} should hold a JSON object.")
    return content


def read_tokenizer_file(file: Path) -> Tokenizer:
    content = read_text(file)
    with LibraryErrors(f"{file} is not a whole tokenizer file"):
        return Tokenizer.from_str(content)


def notes_file(file: Path) -> Path:
    """Where the notes of a tokenizer file stand: `tokenizer_config.json` beside `tokenizer.json`."""
    return file.with_name(f"{file.stem}_config.json")


def write_tokenizer_file(file: Path, tokenizer: Tokenizer, notes: TokenizerNotes, roles: Mapping[str, str]) -> None:
    published = json.dumps(notes.published(roles), indent=2, ensure_ascii=False)
    try:
        file.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        notes_file(file).write_text(published + "\n", encoding="utf-8")
    except OSError as error:
        raise QkvError(f"The tokenizer file {file} cannot be written: {error.strerror}.") from error
