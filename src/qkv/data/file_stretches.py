"""Text files and tables of lines as sources: whole, or in stretches of bytes that begin where a line or document does.

The stretches of a file are fixed before anything is read. Each can be read alone, and together they give what the whole
file gives, whatever their size.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from qkv.data.documents import Corpus, read_plain
from qkv.data.records import BYTE_ORDER_MARK, OPENERS, READERS, header, open_bytes
from qkv.data.source import Found, Source, file_sample, file_size, file_stamp, texts_of
from qkv.data.table import Problem
from qkv.errors import QkvError

BLOCK = 1 << 20
PLAIN = "text"  # the format of files without columns
BY_LINES = (PLAIN, "jsonl", "tsv")  # a CSV record may span lines, so such a file is read from its beginning


@dataclass(frozen=True)
class FileStretch(Source):
    """A file, or the bytes of it from `first` up to `last`."""

    file: Path
    shown: str  # the file, relative to the corpus
    format: str  # "text", or one of `records.READERS`
    column: str
    blank_lines_divide: bool
    whole: int  # bytes of the file
    sample: str
    first: int
    last: int
    names: tuple[str, ...] | None = None  # of the columns, where the header line is not in this stretch

    @property
    def name(self) -> str:  # type: ignore[override]
        if self.first == 0 and self.last == self.whole:
            return self.shown
        return f"{self.shown} bytes {self.first} to {self.last}"

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.last - self.first

    def identity(self) -> dict[str, Any]:
        return {
            "kind": self.format,
            "file": self.shown,
            "bytes": self.whole,
            "sample": self.sample,
            "stretch": [self.first, self.last],
            "by": self.blank_lines_divide if self.format == PLAIN else self.column,
        }

    def stamp(self) -> str:
        return file_stamp(self.file)

    def read(self) -> Iterator[Found]:
        if file_size(self.file) != self.whole:
            raise QkvError(f"{self.file} was changed after it was looked at: begin again when it stays as it is.")
        # Lines are counted from the beginning of the stretch: to number them through would take reading all before.
        shown = self.shown if self.first == 0 else f"{self.shown} from byte {self.first}"
        empty = True
        for found in self._found(shown):
            empty = False
            yield found
        if empty and self.size == self.whole:
            yield Problem(shown, 1, "there is no text in the file")

    def _found(self, shown: str) -> Iterator[Found]:
        if self.format == PLAIN and not self.blank_lines_divide:
            corpus = Corpus()
            read_plain(self.file, False, corpus)
            yield from corpus.texts
            yield from (Problem(shown, problem.line, problem.reason) for problem in corpus.problems)
            return
        with open_bytes(str(self.file)) as stream:
            in_part = self.format in BY_LINES and not is_compressed(self.file)
            lines: Iterable[bytes] = lines_between(stream, self.first, self.last) if in_part else stream
            if self.format == PLAIN:
                yield from paragraphs(lines, shown, begins=self.first == 0)
            else:
                if self.first:
                    lines = with_mark_kept(lines)
                records = READERS[self.format](cast(BinaryIO, lines), shown, self.names)
                yield from texts_of(records, shown, self.column, self.format, begins=self.first == 0)


def file_stretches(
    file: Path, shown: str, format: str, column: str, blank_lines_divide: bool, about: int
) -> list[FileStretch]:
    """The stretches of a file, of about so many bytes each; one, where it has no places to be divided at."""
    whole = file_size(file)
    sample = file_sample(file, whole)
    divisible = format in BY_LINES and not is_compressed(file) and (format != PLAIN or blank_lines_divide)
    cuts = cuts_of(file, whole, about, blank_lines=format == PLAIN) if divisible and whole > about else []
    names = tsv_header(file) if cuts and format == "tsv" else None
    bounds = list(zip([0, *cuts], [*cuts, whole], strict=True))
    common = (file, shown, format, column, blank_lines_divide, whole, sample)
    return [FileStretch(*common, first, last, names if first else None) for first, last in bounds]


def is_compressed(file: Path) -> bool:
    return file.suffix.lower() in OPENERS


def cuts_of(file: Path, whole: int, about: int, *, blank_lines: bool) -> list[int]:
    """Where a file is cut: at the first beginning of a line, or end of a blank line, after each `about` bytes."""
    cuts: list[int] = []
    with open_bytes(str(file)) as stream:
        wanted = about
        while wanted < whole:
            stream.seek(wanted - 1)
            cut = behind_line(stream, blank=blank_lines)
            if cut >= whole:
                break
            cuts.append(cut)
            wanted = max(wanted + about, cut + 1)
    return cuts


def behind_line(stream: BinaryIO, *, blank: bool) -> int:
    """The place behind the next line break, or behind the next blank line; the end of the file where there is none."""
    begun = False  # whether a piece begins a line
    while piece := stream.readline(BLOCK):
        ended = piece.endswith(b"\n")
        if ended and (not blank or (begun and is_blank(piece))):
            break
        begun = ended
    return stream.tell()


def lines_between(stream: BinaryIO, first: int, last: int) -> Iterator[bytes]:
    """The lines of a stretch, which begins and ends where lines do."""
    stream.seek(first)
    left = last - first
    while left > 0 and (line := stream.readline(left)):
        yield line
        left -= len(line)


def with_mark_kept(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines for a reader that takes a mark off the first one, where they do not begin their file."""
    for number, line in enumerate(lines):
        yield BYTE_ORDER_MARK + line if number == 0 and line.startswith(BYTE_ORDER_MARK) else line


def paragraphs(lines: Iterable[bytes], shown: str, *, begins: bool) -> Iterator[Found]:
    """Documents with blank lines between them, each a problem of its own where it is no text: see `BLANK_LINES`.

    What does not begin its file follows a blank line.
    """
    gathered: list[bytes] = []
    at = 1  # the line that these began with
    for number, line in enumerate(lines, start=1):
        if begins and number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        elif is_blank(line) and (number > 1 or not begins):
            yield from document(gathered, shown, at, begins)
            gathered, begins = [], False
            continue
        if not gathered:
            at = number
            if not begins and is_white(line):
                continue
        gathered.append(line)
    yield from document(gathered, shown, at, begins)


def document(lines: list[bytes], shown: str, at: int, begins: bool) -> Iterator[Found]:
    """The one document that these lines are, if they are any."""
    content = b"".join(lines)
    try:
        text = content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        yield Problem(shown, at + content[: error.start].count(b"\n"), "the text is not valid UTF-8")
        return
    text = (text if begins else text.lstrip()).strip("\n")
    if text.strip():
        yield text


def is_blank(line: bytes) -> bool:
    return line.endswith(b"\n") and not line.strip(b" \t\r\n")


def is_white(line: bytes) -> bool:
    """Says whether a line is nothing but white space of any script."""
    try:
        return not line.decode().strip()
    except UnicodeDecodeError:
        return False


def tsv_header(file: Path) -> tuple[str, ...]:
    """The names in the first line, which stretches behind it cannot see."""
    with open_bytes(str(file)) as stream:
        content = stream.readline().removeprefix(BYTE_ORDER_MARK)
    try:
        return tuple(header(content.removesuffix(b"\n").removesuffix(b"\r").decode().split("\t"), str(file)))
    except UnicodeDecodeError:
        raise QkvError(f"The header line of {file} is not valid UTF-8.") from None
