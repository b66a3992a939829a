"""One raw record of a file: a line number and either the named values found there or the reason there are none."""

from dataclasses import dataclass, field
from typing import Any

from qkv.errors import QkvError


@dataclass(frozen=True)
class Record:
    """What one line (one row, in parquet) held: `values`, or a `reason` why it could not be read."""

    line: int
    values: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


def header(values: list[str], file: str) -> list[str]:
    """The column names of a header line, which must differ from each other."""
    doubled = sorted({name for name in values if values.count(name) > 1})
    if doubled:
        raise QkvError(f"{file} names the column {doubled[0][:40]!r} twice: each name must differ.")
    return values
