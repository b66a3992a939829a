"""Parquet files as sources: a few of their row groups each."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from qkv.data.parquet_rows import parquet_file, parquet_records
from qkv.data.records import open_bytes
from qkv.data.source import Found, Source, file_sample, file_size, file_stamp, texts_of
from qkv.data.table import Problem, no_such_column
from qkv.errors import QkvError


@dataclass(frozen=True)
class RowGroups(Source):
    """The row groups from `first` up to `last` of a parquet file."""

    file: Path
    shown: str  # the file, relative to the corpus
    column: str
    whole: int  # bytes of the file
    sample: str
    first: int
    last: int
    groups: int  # of the file
    rows_before: int
    size: int

    @property
    def name(self) -> str:  # type: ignore[override]
        if self.last - self.first == self.groups:
            return self.shown
        return f"{self.shown} row groups {self.first} to {self.last} of {self.groups}"

    def identity(self) -> dict[str, Any]:
        return {
            "kind": "parquet",
            "file": self.shown,
            "bytes": self.whole,
            "sample": self.sample,
            "stretch": [self.first, self.last],
            "by": self.column,
        }

    def stamp(self) -> str:
        return file_stamp(self.file)

    def read(self) -> Iterator[Found]:
        with open_bytes(str(self.file)) as stream, parquet_file(stream, str(self.file)) as table:
            if table.num_row_groups != self.groups:
                raise QkvError(f"{self.file} was changed after it was looked at: begin again when it stays as it is.")
            columns = table.schema_arrow.names
            if self.column not in columns:
                raise QkvError(f"{no_such_column(self.shown, self.column, columns)}.")
            groups = range(self.first, self.last)
            records = parquet_records(table, groups, [self.column], self.rows_before + 1)
            empty = True
            for found in texts_of(records, self.shown, self.column, "parquet"):
                empty = False
                yield found
            if empty:
                yield Problem(self.shown, 1, "there are no rows")


def row_groups(file: Path, shown: str, column: str, about: int) -> list[RowGroups]:
    """The sources of a parquet file: row groups that follow each other, together of about so many bytes unpacked."""
    whole = file_size(file)
    with open_bytes(str(file)) as stream, parquet_file(stream, str(file)) as table:
        metadata = table.metadata
        columns = table.schema_arrow.names
        if column not in columns:
            raise QkvError(f"{no_such_column(str(file), column, columns)}.")
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        # Of all columns: what is noted of one alone ends the whole process where the note is damaged (pyarrow 26).
        sizes = [int(group.total_byte_size) for group in groups]
        rows = [int(group.num_rows) for group in groups]
    bounds, gathered = [0], 0
    for number, size in enumerate(sizes):
        if gathered and gathered + size > about:
            bounds.append(number)
            gathered = 0
        gathered += size
    bounds.append(len(groups))
    sample = file_sample(file, whole)
    return [
        RowGroups(
            file, shown, column, whole, sample, first, last, len(groups), sum(rows[:first]), sum(sizes[first:last])
        )
        for first, last in pairwise(bounds)
    ]
