"""Raw records out of one file: a line number and either the named values found there or the reason there are none.

Every reader here yields `Record`s and never raises for a single bad one; what a whole file gets wrong (no such file,
not really gzip, a header that names a column twice) is a `QkvError`. `table.py` decides which records are good rows.
"""

import csv
import gzip
import json
import lzma
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from qkv.data.parquet_rows import read_parquet
from qkv.data.record import Record, header
from qkv.data.tar_samples import read_tar
from qkv.errors import QkvError

STANDARD_INPUT = "-"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
NO_UTF8 = "the line is not valid UTF-8"
LONGEST_LINE = 2**26  # bytes; a packed file of a megabyte can unpack to a line of gigabytes


Reader = Callable[[BinaryIO, str, Sequence[str] | None], Iterator[Record]]


@contextmanager
def open_bytes(file: str) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed by its suffix, or of standard input; every failure to read is one sentence."""
    try:
        if file == STANDARD_INPUT:
            yield sys.stdin.buffer
        else:
            with OPENERS.get(Path(file).suffix.lower(), open)(file, "rb") as stream:
                yield cast(BinaryIO, stream)
    except FileNotFoundError as error:
        raise QkvError(f"There is no file {file}: give the path of an existing file.") from error
    except PermissionError as error:
        raise QkvError(f"{file} may not be read: its permissions forbid it.") from error
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise QkvError(f"{file} cannot be decompressed: it is cut short or not what its name says.") from error
    except OSError as error:
        raise QkvError(f"{file} cannot be read: {error.strerror or error}.") from error


def format_of(file: str) -> str | None:
    """The format that a file's name promises (`words.tsv.xz` -> `tsv`), or None where it promises none."""
    path = Path(file)
    if path.suffix.lower() in OPENERS:
        path = path.with_suffix("")
    return SUFFIXES.get(path.suffix.lower())


def lines_of(stream: Iterable[bytes], file: str) -> Iterator[bytes]:
    """The lines of a file, of a length that a table has; or lines that others found, as they are."""
    readline = getattr(stream, "readline", None)
    if readline is None:
        yield from stream
        return
    while line := readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise QkvError(f"{file} has a line of more than {LONGEST_LINE >> 20} MiB: it is no table.")
        yield line


def read_tsv(stream: BinaryIO, file: str, names: Sequence[str] | None) -> Iterator[Record]:
    """Plain tab-separated lines. No quoting: a quotation mark is an ordinary character of the text."""
    for line, content in enumerate(lines_of(stream, file), start=1):
        if line == 1:
            content = content.removeprefix(BYTE_ORDER_MARK)
        try:
            values = content.removesuffix(b"\n").removesuffix(b"\r").decode().split("\t")
        except UnicodeDecodeError:
            if names is None:
                raise QkvError(f"The header line of {file} is not valid UTF-8.") from None
            yield Record(line, reason=NO_UTF8)
            continue
        if names is None:
            names = header(values, file)
        else:
            yield named(line, names, values)


class Lines:
    """The lines of a text, of which those taken since `mark` can be put back."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._back: deque[str] = deque()
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._back.popleft() if self._back else next(self._lines)
        self.taken.append(line)
        return line

    def mark(self) -> None:
        self.taken = []

    def put_back(self, count: int) -> None:
        """The last `count` lines will be taken again."""
        kept = len(self.taken) - count
        self._back.extendleft(reversed(self.taken[kept:]))
        del self.taken[kept:]


def read_csv(stream: BinaryIO, file: str, names: Sequence[str] | None) -> Iterator[Record]:
    """Comma-separated values as the csv module reads them; a record may span lines and is numbered by its first one.

    A quote that is opened and not rightly closed spoils its own line only: reading goes on with the line after it.
    """
    # Bytes that are not UTF-8 become surrogates here and are found again in the fields they ended up in.
    decoded = (content.decode(errors="surrogateescape") for content in lines_of(stream, file))
    lines = Lines(text.removeprefix("\ufeff") if i == 0 else text for i, text in enumerate(decoded))
    rows = csv.reader(lines, strict=True)
    line = 1
    while True:
        lines.mark()
        try:
            values = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            reason = f"the line is not valid CSV ({error})"
            if len(lines.taken) > 1 or "unexpected end" in str(error):
                reason = "the line is not valid CSV (it opens a quote that is not closed as it should be)"
                lines.put_back(len(lines.taken) - 1)
            if names is None:
                raise QkvError(f"The header of {file} cannot be used: {reason}.") from None
            yield Record(line, reason=reason)
        else:
            if not all(is_unicode(value) for value in values):
                if names is None:
                    raise QkvError(f"The header line of {file} is not valid UTF-8.")
                yield Record(line, reason=NO_UTF8)
            elif names is None:
                names = header(values, file)
            else:
                yield named(line, names, values)
        line += len(lines.taken)


def read_jsonl(stream: BinaryIO, file: str, names: Sequence[str] | None) -> Iterator[Record]:
    """One JSON object a line, its keys the column names."""
    if names is not None:
        raise QkvError(
            f"{file} holds JSON objects, which name their own columns: give no --names (in Python, names=) for it."
        )
    for line, content in enumerate(lines_of(stream, file), start=1):
        if line == 1:
            content = content.removeprefix(BYTE_ORDER_MARK)
        try:
            values = json.loads(content.decode())
        except UnicodeDecodeError:
            yield Record(line, reason=NO_UTF8)
        except (ValueError, RecursionError) as error:
            yield Record(line, reason="the line is blank" if not content.strip() else f"invalid JSON ({error})")
        else:
            if isinstance(values, dict):
                yield Record(line, values)
            else:
                yield Record(line, reason=f"the line holds a JSON {type(values).__name__}, not an object with columns")


READERS: dict[str, Reader] = {
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "tar": read_tar,
}
SUFFIXES = {f".{name}": name for name in READERS}


def named(line: int, names: Sequence[str], values: list[str]) -> Record:
    """Values under their column names, or the reason that they do not fit."""
    if not any(values):
        return Record(line, reason="the line is blank")
    if len(values) != len(names):
        return Record(line, reason=f"{len(values)} columns where {len(names)} are expected")
    return Record(line, dict(zip(names, values, strict=True)))


def is_unicode(text: str) -> bool:
    """Whether a string can be written as UTF-8, that is, holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
