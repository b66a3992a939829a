"""What a corpus larger than memory is made of: stretches that are read alone, text by text, in any process."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any

from qkv.data.records import Record
from qkv.data.table import Problem, Table, good_row, rows_of
from qkv.errors import QkvError

Found = str | Problem  # a document, or why there is none
SAMPLE = 4096  # bytes of the beginning, the middle and the end of a file that a cheap fingerprint looks at


class Source(ABC):
    """A stretch of a corpus: one file, some lines or row groups of it, some rows of a data set.

    What is cheap to know of it is its `identity`: where it stands, how long its file is, and a sample of the bytes
    there. That tells corpora apart, but not every edit. `stamp` changes when somebody writes to the file, and
    `TextHash` of what `read` gives, which is known only once all is read, tells whether any text did change.
    """

    name: str  # what a person calls it: a file relative to the corpus, and which part of it
    size: int  # bytes on disk, or rows where nobody knows: how much of the corpus this is

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What makes this stretch another one than others, as JSON, found without reading it."""

    @abstractmethod
    def stamp(self) -> str | None:
        """The same as long as nobody has written to the file; None where only reading tells."""

    @abstractmethod
    def read(self) -> Iterator[Found]:
        """The documents in their order, and the problems of those that could not be read."""


class TextHash:
    """A fingerprint of texts in their order, taken while they pass by; problems between them do not count."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, text: str) -> int:
        """Count a text in; returns its length in bytes."""
        content = text.encode()
        self._digest.update(len(content).to_bytes(8, "big") + content)
        return len(content)

    def result(self) -> str:
        return self._digest.hexdigest()


def text_hash(source: Source) -> str:
    """The fingerprint of the texts that a source holds now."""
    found = TextHash()
    for text in source.read():
        if isinstance(text, str):
            found.add(text)
    return found.result()


def texts_of(
    records: Iterable[Record], shown: str, column: str, format: str, *, begins: bool = True
) -> Iterator[Found]:
    """The column of good rows, and the problems of the others.

    That no row at all has such a column is an error where the records begin their file. Further on in JSONL it may be
    so by chance, for every line names its own columns.
    """
    table = Table([column])
    if begins:
        for found in rows_of(records, shown, table, format):
            yield found if isinstance(found, Problem) else found[column]
    else:
        for record in records:
            row, reason = good_row(record, table)
            yield Problem(shown, record.line, reason) if reason else row[column]


def file_stamp(file: Path) -> str:
    state = file_state(file)
    return f"{state.st_size}:{state.st_mtime_ns}"


def file_size(file: Path) -> int:
    return file_state(file).st_size


def file_state(file: Path) -> os.stat_result:
    try:
        state = file.stat()
    except OSError as error:
        raise QkvError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    if not S_ISREG(state.st_mode):
        raise QkvError(f"{file} is a pipe or a device, which cannot be read in parts: give a file.")
    return state


def file_sample(file: Path, size: int) -> str:
    """A fingerprint of a few thousand bytes of a file."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            for first in (0, max(0, size // 2 - SAMPLE // 2), max(0, size - SAMPLE)):
                stream.seek(first)
                digest.update(stream.read(SAMPLE))
    except OSError as error:
        raise QkvError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    return digest.hexdigest()[:16]
