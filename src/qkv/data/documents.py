"""A corpus: documents out of plain text files and tables, and their ids in flat arrays."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from qkv.data.records import BYTE_ORDER_MARK, OPENERS, READERS, STANDARD_INPUT, format_of, open_bytes
from qkv.data.table import Problem, Table, file_format, read_file
from qkv.data.token_rows import Ints, TokenRows
from qkv.errors import QkvError

ENCODED_AT_ONCE = 1024  # documents: their ids are lists only so long as this, then four bytes each

# A sentence ends with its mark and closing quotes, and the next begins with something other than a small letter.
SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’»)\]]*\s+(?=[^\sa-z])|\n+")
BLANK_LINES = re.compile(r"\n[ \t\r]*\n\s*")


class Encoder(Protocol):
    """What turns texts into ids, such as `TextTokenizer`."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...


@dataclass
class Corpus:
    """The documents that could be read, and the problems of those that could not."""

    texts: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_documents(
    path: str | Path, *, column: str = "text", format: str | None = None, blank_lines_divide: bool = False
) -> Corpus:
    """The documents of a text file, of a table's `column`, or of all such files below a folder, in the order of names.

    A `.txt` file is one document, or several with blank lines between if `blank_lines_divide`. Text of bytes that are
    no UTF-8 is a problem, as are bad rows of a table; only a path with no document at all is an error.
    """
    corpus = Corpus()
    for file in corpus_files(Path(path), format):
        if format is None and is_plain(file):
            read_plain(file, blank_lines_divide, corpus)
        else:
            table = Table([column])
            read_file(str(file), format or file_format(str(file)), None, table)
            corpus.texts += table.column(column)
            corpus.problems += table.problems
    if not corpus.texts:
        first = f"; the first problem is {corpus.problems[0]}" if corpus.problems else ""
        raise QkvError(f"There is no document in {path}{first}.")
    return corpus


def corpus_files(path: Path, format: str | None) -> list[Path]:
    """The file itself, or every text file and table below a folder."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    files = [file for file in files if not any(part[0] == "." for part in file.relative_to(path).parts)]
    files = [
        file for file in files if (format_of(str(file)) == format if format else is_plain(file) or format_of(str(file)))
    ]
    if not files:
        raise QkvError(f"The folder {path} holds no text: it needs files named *.txt, *.{', *.'.join(READERS)}.")
    return files


def is_plain(file: Path) -> bool:
    """Says whether a file is text without columns; so is standard input whose format nobody names."""
    if str(file) == STANDARD_INPUT:
        return True
    suffixes = [suffix.lower() for suffix in file.suffixes]
    return (suffixes[-2:-1] if suffixes[-1:] and suffixes[-1] in OPENERS else suffixes[-1:]) == [".txt"]


def read_plain(file: Path, blank_lines_divide: bool, corpus: Corpus) -> None:
    """Add the documents of a plain text file."""
    with open_bytes(str(file)) as stream:
        content = stream.read().removeprefix(BYTE_ORDER_MARK)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        corpus.problems.append(Problem(str(file), line, "the text is not valid UTF-8"))
        return
    text = text.replace("\r\n", "\n")
    documents = BLANK_LINES.split(text) if blank_lines_divide else [text]
    documents = [document.strip("\n") for document in documents if document.strip()]
    if not documents:
        corpus.problems.append(Problem(str(file), 1, "there is no text in the file"))
    corpus.texts += documents


def sentences_of(text: str) -> list[str]:
    """A document in sentences, roughly: after a full stop and the like, and at line breaks.

    What learns from the order of sentences needs pieces of running text, not grammar: an abbreviation that is cut
    does no harm.
    """
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    pieces = [text[first:last].strip() for first, last in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [piece for piece in pieces if piece]


@dataclass(frozen=True)
class Documents:
    """All the documents of a corpus as ids, without special tokens."""

    tokens: TokenRows
    bytes: Ints  # [n] of each text in UTF-8, which makes likelihoods of different tokenizers comparable

    @classmethod
    def from_texts(cls, texts: Sequence[str], encoder: Encoder) -> "Documents":
        if not texts:
            raise QkvError("There is no document: a corpus needs at least one text.")
        tokens = encode_rows(texts, encoder)
        return cls(tokens, np.fromiter((len(text.encode()) for text in texts), np.int64, count=len(texts)))

    @classmethod
    def joined(cls, parts: "Sequence[Documents]") -> "Documents":
        """The documents of several, one after the other."""
        tokens = TokenRows.joined([part.tokens for part in parts])
        return cls(tokens, np.concatenate([part.bytes for part in parts]))

    def __len__(self) -> int:
        return len(self.tokens)

    def chosen(self, rows: Ints) -> "Documents":
        """Some of the documents, in the order that is given."""
        return Documents(self.tokens.chosen(rows), self.bytes[rows])


def encode_rows(texts: Sequence[str], encoder: Encoder, pad: int = 0) -> TokenRows:
    """The ids of many texts, never held as lists all at once."""
    return TokenRows.joined([TokenRows.from_lists(encoder.encode(some), pad) for some in _some_at_a_time(texts)])


def _some_at_a_time(texts: Sequence[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while some := list(islice(remaining, ENCODED_AT_ONCE)):
        yield some
