"""Rows of named columns from the files people have: TSV, CSV, JSONL, parquet, tar, compressed, a folder, or a pipe.

A real file has bad rows. Each is kept as a `Problem` with its file, line and reason, and the good rows are used; only a
file with no good row at all is an error.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.data.columns import SHOWN, Kind, accepts_none, text
from qkv.data.records import READERS, STANDARD_INPUT, SUFFIXES, Record, format_of, open_bytes
from qkv.errors import QkvError

Row = dict[str, Any]
NAME_THEIR_OWN = ("jsonl", "tar")  # formats in which each row has columns of its own


@dataclass(frozen=True)
class Problem:
    """One bad row: where it stands and why it was left out. In parquet, `line` counts rows."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line}: {self.reason}"


@dataclass
class Table:
    """The good rows, each a dict of the wanted columns, and the problems of the others."""

    columns: list[str]
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # what a column holds where that is not plain text
    check: Callable[[Row], str] = lambda row: ""  # why a row is bad whose columns are good each for itself, or ""
    rows: list[Row] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        """All the values of one column, in row order."""
        if name not in self.columns:
            raise QkvError(f"{no_such_column('The table', name, self.columns)}.")
        return [row[name] for row in self.rows]


def read_table(
    path: str | Path,
    columns: Sequence[str] | None = None,
    *,
    kinds: Mapping[str, Kind] | None = None,
    check: Callable[[Row], str] = lambda row: "",
    names: Sequence[str] | None = None,
    format: str | None = None,
) -> Table:
    """Read a file, every data file of a folder (in name order), or standard input (`-`, with its `format`).

    `columns` are the columns wanted, all that the first good row has if not given; a row must have text in each of
    them, or what its entry in `kinds` asks for; `check` tells what is wrong with a row as a whole. `names` names the
    columns of a TSV or CSV file without a header line. `format` is one of tsv, csv, jsonl, parquet and tar, and is
    taken from the file's name if not given.
    """
    if format is not None and format not in READERS:
        raise QkvError(
            f"There is no format {format!r}{nearest(format, READERS)}: the formats are {', '.join(READERS)}."
        )
    if names is not None and len(set(names)) != len(names):
        raise QkvError(f"The column names {', '.join(names)} are not all different.")
    table = Table(list(columns) if columns is not None else [], kinds or {}, check)
    for file in data_files(str(path), format):
        read_file(file, format or file_format(file), names, table)
    if not table.rows:
        raise QkvError(
            f"None of the {len(table.problems)} rows of {path} can be used; the first problem is {table.problems[0]}."
        )
    return table


def data_files(path: str, format: str | None) -> Iterator[str]:
    """The files to read: the path itself, or what a folder holds in files of a known format."""
    if path == STANDARD_INPUT:
        if format is None:
            raise QkvError(
                "Standard input has no file name to tell its format: give --format (in Python, format=), "
                f"one of {', '.join(READERS)}."
            )
        yield path
    elif Path(path).is_dir():
        wanted = set(READERS) if format is None else {format}
        files = [str(file) for file in sorted(Path(path).iterdir()) if file.is_file() and file.name[0] != "."]
        files = [file for file in files if format_of(file) in wanted]
        if not files:
            raise QkvError(f"The folder {path} holds no data file: it needs files named *{', *'.join(SUFFIXES)}.")
        yield from files
    else:
        yield path


def file_format(file: str) -> str:
    """The format of one file by its name, or a sentence that says what names are understood."""
    found = format_of(file)
    if found is None:
        if not Path(file).exists():
            raise QkvError(f"There is no file {file}: give the path of an existing file.")
        raise QkvError(
            f"The name of {file} tells no known format: it should end in {', '.join(SUFFIXES)} "
            f"(with .gz or .xz if compressed), or give --format (in Python, format=)."
        )
    return found


def read_file(file: str, format: str, names: Sequence[str] | None, table: Table) -> None:
    """Add the rows and problems of one file to the table."""
    shown = "standard input" if file == STANDARD_INPUT else file
    empty = True
    with open_bytes(file) as stream:
        for found in rows_of(READERS[format](stream, shown, names), shown, table, format, names):
            empty = False
            if isinstance(found, Problem):
                table.problems.append(found)
            else:
                table.rows.append(found)
    if empty:
        raise QkvError(f"There are no rows in {shown}: it is empty or has nothing but a header line.")


def rows_of(
    records: Iterable[Record], shown: str, table: Table, format: str, names: Sequence[str] | None = None
) -> Iterator[Row | Problem]:
    """The good rows of one file and the problems of the others, one at a time; the table says what is good.

    Raises at the end where no record has some wanted column.
    """
    seen: dict[str, None] = {}  # columns met in any record, in order of appearance
    missed = True  # until one record has every wanted column
    for record in records:
        if not table.columns and not record.reason:
            table.columns = list(record.values)
        if missed and not record.reason:
            seen.update(dict.fromkeys(record.values))
            missed = any(column not in record.values for column in needed(table))
            if missed and format not in NAME_THEIR_OWN:  # the other formats have the same columns in every row
                break
        row, reason = good_row(record, table)
        yield Problem(shown, record.line, reason) if reason else row
    absent = [column for column in needed(table) if column not in seen]
    if seen and absent:
        bare = "; if it has no header line, give --names (in Python, names=)"
        hint = bare if format in ("tsv", "csv") and names is None else ""
        raise QkvError(f"{no_such_column(shown, absent[0], list(seen))}{hint}.")


def needed(table: Table) -> list[str]:
    """The columns that no row may do without."""
    return [column for column in table.columns if not accepts_none(table.kinds.get(column, text))]


def good_row(record: Record, table: Table) -> tuple[Row, str]:
    """The wanted columns of a record, and why it is no good row, or an empty string."""
    row: Row = {}
    if record.reason:
        return row, record.reason
    for column in table.columns:
        try:
            row[column] = table.kinds.get(column, text)(record.values.get(column))
        except ValueError as error:
            return row, f"the column {column!r} {error}"
    return row, table.check(row)


def no_such_column(where: str, name: str, columns: Sequence[str]) -> str:
    """The sentence for a wrong column name: which columns there are, and the nearest."""
    listed = ", ".join(column[:SHOWN] for column in columns)
    return f"{where} has no column {name!r}{nearest(name, columns)}: its columns are {listed}"


def nearest(name: str, among: Iterable[str]) -> str:
    """` (did you mean 'x'?)` where something comes close, else nothing."""
    original = {item.lower(): item for item in among}
    close = difflib.get_close_matches(name.lower(), original, n=1)
    return f" (did you mean {original[close[0]][:SHOWN]!r}?)" if close else ""
