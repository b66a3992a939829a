"""The process of one command: what was typed, and how it gets to work and to its end without delay."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

TYPED: ContextVar[Sequence[str] | None] = ContextVar("typed", default=None)  # the command line, from `qkv` on
ALONE: ContextVar[bool] = ContextVar("alone", default=False)  # whether the process ends with this command


@contextmanager
def opening() -> Iterator[None]:
    """Inside, files are opened: nothing of what that makes is garbage, so none is looked for, now or later.

    Python looks every few hundred objects, and there are hundreds of thousands: a tenth of the time.
    """
    if not ALONE.get() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def ending() -> None:
    """All that is left is given back with the process: nobody has to look which of it is garbage."""
    if ALONE.get():
        gc.freeze()
