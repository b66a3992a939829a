"""A corpus as a list of sources, found without reading it."""

from pathlib import Path
from typing import Any

from qkv.data.dataset_rows import dataset_rows, is_saved
from qkv.data.documents import corpus_files, is_plain
from qkv.data.file_stretches import PLAIN, file_stretches, is_compressed
from qkv.data.records import READERS, STANDARD_INPUT
from qkv.data.row_groups import row_groups
from qkv.data.source import Source
from qkv.data.table import file_format, nearest
from qkv.errors import QkvError

SHARD_BYTES = 64 << 20  # of text in a source, where it can be divided: some 15 million tokens


def sources_of(
    path: str | Path | Any,
    *,
    column: str = "text",
    format: str | None = None,
    blank_lines_divide: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> list[Source]:
    """The sources of a file or of all files below a folder, in the order of names: what `read_documents` would read.

    Also those of a data set of the `datasets` library, given as an object or as a folder that it saved. A plain file of
    lines, a parquet file and a data set are divided into stretches of about `shard_bytes`. What cannot be read from the
    middle, a compressed file, a tar shard or CSV, is one source, whatever its size.
    """
    if str(path) == STANDARD_INPUT:
        raise QkvError("Standard input cannot be read in parts: give a file or a folder.")
    if format is not None and format not in READERS:
        raise QkvError(
            f"There is no format {format!r}{nearest(format, READERS)}: the formats are {', '.join(READERS)}."
        )
    if shard_bytes < 1:
        raise QkvError(f"A shard of {shard_bytes} bytes holds nothing: give at least 1.")
    if not isinstance(path, str | Path):
        return [*dataset_rows(path, column, shard_bytes)]
    path = Path(path)
    if path.is_dir() and is_saved(path):
        return [*dataset_rows(path, column, shard_bytes)]
    found: list[Source] = []
    for file in corpus_files(path, format):
        shown = file.relative_to(path).as_posix() if path.is_dir() else file.name
        kind = PLAIN if format is None and is_plain(file) else format or file_format(str(file))
        if kind == "parquet" and not is_compressed(file):
            found += row_groups(file, shown, column, shard_bytes)
        else:
            found += file_stretches(file, shown, kind, column, blank_lines_divide, shard_bytes)
    return found
