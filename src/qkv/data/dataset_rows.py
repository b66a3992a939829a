"""Data sets of the `datasets` library as sources: an object, or a folder that `save_to_disk` wrote.

Only data sets that lie in Arrow files or in memory, which can be read from any row on. The library is the extra
`qkv[datasets]`, and is needed only where a folder is given.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.data.record import Record
from qkv.data.source import Found, Source, TextHash, file_stamp, texts_of
from qkv.data.table import no_such_column
from qkv.errors import QkvError

AT_ONCE = 256  # rows
SAMPLED = 16  # rows that a cheap fingerprint looks at
STATE, SPLITS = "state.json", "dataset_dict.json"  # the files by which a folder of the library is known


@dataclass(frozen=True)
class DatasetRows(Source):
    """The rows from `first` up to `last` of a data set."""

    data: Any  # a `datasets.Dataset`, or the folder of one
    column: str
    rows: int  # of the whole data set
    sample: str
    first: int
    last: int

    @property
    def name(self) -> str:  # type: ignore[override]
        shown = self.data.name if isinstance(self.data, Path) else "data set"
        return shown if self.last - self.first == self.rows else f"{shown} rows {self.first} to {self.last}"

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.last - self.first

    def identity(self) -> dict[str, Any]:
        kind = {"kind": "dataset", "rows": self.rows, "sample": self.sample}
        return {**kind, "stretch": [self.first, self.last], "by": self.column}

    def stamp(self) -> str | None:
        if not isinstance(self.data, Path):
            return None
        return " ".join(file_stamp(file) for file in sorted(self.data.glob("*.arrow")))

    def read(self) -> Iterator[Found]:
        data = opened(self.data)
        if len(data) != self.rows:
            raise QkvError(
                f"{self.name} has other rows than when it was looked at: begin again when it stays as it is."
            )
        yield from texts_of(self._records(data), self.name, self.column, "dataset")

    def _records(self, data: Any) -> Iterator[Record]:
        column = plain(data, self.column)
        for first in range(self.first, self.last, AT_ONCE):
            texts = column[first : min(first + AT_ONCE, self.last)][self.column]
            for row, text in enumerate(texts, first + 1):
                yield Record(row, {self.column: text})


def dataset_rows(data: Any, column: str, about: int) -> list[DatasetRows]:
    """The sources of a data set: rows that follow each other, together of about so many bytes of texts."""
    found = opened(data)
    rows = len(found)
    if column not in found.column_names:
        shown = data.name if isinstance(data, Path) else "The data set"
        raise QkvError(f"{no_such_column(shown, column, found.column_names)}.")
    if not rows:
        raise QkvError("There is no row in the data set: it needs at least one.")
    places = sorted({place * (rows - 1) // max(1, SAMPLED - 1) for place in range(SAMPLED)})
    digest = TextHash()
    texts = plain(found, column)
    length = sum(digest.add(str(texts[place][column])) for place in places)
    step = max(1, about * len(places) // max(1, length))
    bounds = [(first, min(first + step, rows)) for first in range(0, rows, step)]
    return [DatasetRows(data, column, rows, digest.result()[:16], first, last) for first, last in bounds]


def plain(data: Any, column: str) -> Any:
    """One column of a data set, whatever form it gives rows in."""
    return data.with_format(None).select_columns([column])


def opened(data: Any) -> Any:
    """The data set itself, which must know its rows."""
    if isinstance(data, Path):
        try:
            from datasets import load_from_disk
        except ImportError as error:
            raise QkvError(f"Reading {data} needs the datasets library: pip install 'qkv[datasets]'.") from error
        try:
            data = load_from_disk(str(data))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise QkvError(
                f"{data} is not a whole data set: {str(error).splitlines()[0] if str(error) else error!r}."
            ) from error
    if not hasattr(data, "column_names") or not hasattr(data, "select_columns") or not hasattr(data, "__len__"):
        raise QkvError(
            f"A corpus is a file, a folder or a data set that knows its rows, not {type(data).__name__}: save it with "
            "save_to_disk and give one of its splits."
        )
    return data


def is_saved(folder: Path) -> bool:
    """Says whether a folder is a data set of the library; raises where it is several."""
    if (folder / SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{STATE}"))
        first = splits[0] if splits else "train"
        raise QkvError(f"{folder} holds the splits {', '.join(splits)}: give one of them, such as {folder / first}.")
    return (folder / STATE).is_file() and any(folder.glob("*.arrow"))
