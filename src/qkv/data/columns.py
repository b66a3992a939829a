"""What a column of a table may hold: functions from a raw value to a good one.

Each raises `ValueError` with the rest of a sentence that begins "the column 'x' ...". Where a row has no such column
the value is None.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from qkv.data.records import is_unicode

LARGEST = sys.float_info.max
SHOWN = 40  # characters of a name or value that a message repeats
Kind = Callable[[Any], Any]


def text(value: Any) -> str:
    """Some text that is not blank."""
    if value is None:
        raise ValueError("is missing")
    if not isinstance(value, str):
        raise ValueError(f"holds {str(value)[:SHOWN]} ({type(value).__name__}), not text")
    if not value.strip():
        raise ValueError("is empty")
    if not is_unicode(value):
        raise ValueError("holds half of a surrogate pair, which is no character")
    return value


def label(value: Any) -> str:
    """The name of a class: text, or a whole number or truth value as files with types have it."""
    return str(value) if isinstance(value, int) else text(value).strip()


def one_of(names: Sequence[str]) -> Kind:
    """One of these names and no other."""
    known = set(names)

    def kind(value: Any) -> str:
        name = label(value)
        if name not in known:
            raise ValueError(f"holds {name[:SHOWN]!r}, which is none of {', '.join(names)}")
        return name

    return kind


def is_number(value: Any) -> bool:
    """Says whether it is a number that a float can be; JSON has larger ones, and some that are none."""
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST


def number(value: Any) -> float:
    """A finite number, as such or spelled out."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        value = text(value)
    try:
        result = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"holds {str(value)[:SHOWN]!r}, not a number") from None
    if not math.isfinite(result):
        raise ValueError(f"holds {value}, not a finite number")
    return result


def words(value: Any) -> list[str]:
    """A list of words, as such or with spaces between."""
    if isinstance(value, list):
        if not value:
            raise ValueError("is empty")
        return [str(word) if isinstance(word, int) else text(word) for word in value]
    return text(value).split()


def optional(kind: Kind) -> Kind:
    """The same, or None where there is no value or an empty one."""
    return lambda value: None if value is None or value == "" else kind(value)


def accepts_none(kind: Kind) -> bool:
    """Whether a row may do without such a column."""
    try:
        kind(None)
    except ValueError:
        return False
    return True
