"""Processes that look for no module in the folder they stand in, which may be a stranger's.

Python puts the current folder before all others where it is started with `-c`, as `multiprocessing` and torch start it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from qkv.errors import QkvError

NAME = "PYTHONSAFEPATH"  # as `python -P`

_changing = Lock()
_within: list[str | None] = []  # for each block that is open, what stood there before


def for_good() -> None:
    """From here on, for all that this process starts: where it is one of ours from its beginning to its end."""
    os.environ[NAME] = "1"


@contextmanager
def safe_path() -> Iterator[None]:
    """Inside, for all that this process starts; what others of its programs start before and after is theirs."""
    if sys.flags.ignore_environment and not sys.flags.safe_path:
        raise QkvError("Python runs with -E, so that its processes look for modules in the current folder: add -P.")
    with _changing:
        _within.append(os.environ.get(NAME))
        os.environ[NAME] = "1"
    try:
        yield
    finally:
        with _changing:
            before = _within.pop()
            if not _within:
                os.environ.pop(NAME) if before is None else os.environ.update({NAME: before})
