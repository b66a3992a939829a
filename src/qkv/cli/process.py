"""The process of one command: what was typed, and how it gets to work and to its end without delay."""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from qkv.errors import QkvError

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


ENOUGH = 2**33  # bytes of address space in which every build of PyTorch loads
TRY = f"import mmap, torch; mmap.mmap(-1, {2**27})"  # and something beside it


def address_space() -> int | None:
    """The most bytes of addresses that this process may have; None: there is no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space() -> None:
    """Where a limit does not let PyTorch load it ends as it likes, often without a word: another process tries it."""
    limit = address_space()
    if limit is None or limit >= ENOUGH:
        return
    import subprocess

    tried = subprocess.run(
        [sys.executable, "-P", "-c", TRY],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if tried.returncode:
        raise QkvError(
            f"PyTorch does not load in {limit / 2**30:.1f} GiB of address space, which is the limit here: raise it "
            "(ulimit -v unlimited)."
        )
