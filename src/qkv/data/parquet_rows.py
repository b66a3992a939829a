"""Rows of parquet files, one batch at a time; they need the extra `qkv[parquet]`."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from qkv.data.record import Record, header
from qkv.errors import QkvError

ROWS_AT_ONCE = 1024  # a row of text may be long


def read_parquet(stream: BinaryIO, file: str, names: Sequence[str] | None) -> Iterator[Record]:
    """Rows of a parquet file, numbered from 1."""
    if names is not None:
        raise QkvError(
            f"{file} is a parquet file, which names its own columns: give no --names (in Python, names=) for it."
        )
    content = stream.read()
    if not content:
        return
    with parquet_file(io.BytesIO(content), file) as table:
        yield from parquet_records(table)


@contextmanager
def parquet_file(stream: BinaryIO, file: str) -> Iterator[Any]:
    """An open `pyarrow.parquet.ParquetFile`; what is wrong with it while it is used is one sentence."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise QkvError(f"Reading {file} needs pyarrow: pip install 'qkv[parquet]'.") from error
    try:
        table = parquet.ParquetFile(stream)
        header(table.schema_arrow.names, file)
        yield table
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise QkvError(f"{file} is not a whole parquet file: {str(error).splitlines()[0]}") from error


def parquet_records(
    table: Any, groups: Sequence[int] | None = None, columns: Sequence[str] | None = None, first: int = 1
) -> Iterator[Record]:
    """Rows of all or some row groups, of all or some columns, numbered from `first`."""
    batches = table.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=columns)
    for batch in batches:
        for row in range(batch.num_rows):
            yield parquet_row(batch, row, first)
            first += 1


def parquet_row(batch: Any, row: int, line: int) -> Record:
    """One row of a record batch; a string column may hold bytes that are no UTF-8, which shows only on reading it."""
    try:
        return Record(line, {name: batch.column(name)[row].as_py() for name in batch.schema.names})
    except UnicodeDecodeError:
        return Record(line, reason="the row is not valid UTF-8")
    except (ValueError, OverflowError) as error:  # such as a date that Python has no number for
        return Record(line, reason=f"the row holds a value that cannot be read ({error})")
