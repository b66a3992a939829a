"""The process of one command: what was typed, and how it gets to work and to its end without delay."""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from qkv.errors import QkvError

TYPED: ContextVar[Sequence[str] | None] = ContextVar("typed", default=None)  # the command line, from `qkv` on
ALONE: ContextVar[bool] = ContextVar("alone", default=False)  # whether the process ends with this command

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # how threads of OpenMP wait for work
LOADS = Path("/proc/loadavg")  # where a system tells how many processes want a core at this moment


def share_cores() -> None:
    """Settle how threads wait for each other, for a process of our own; what a person has settled stands.

    A thread that waits spins for milliseconds, and where others use the cores too it holds the core that the work it
    waits for needs: small models were 10 to 100 times slower so. There threads sleep. On quiet cores sleep costs a
    tenth of training and half of decoding, so there they spin, for some 50 microseconds at most: that costs nothing,
    and little once others come. torch's threads read it when torch is imported, so this has to come before.
    """
    if "torch" in sys.modules or any(name in os.environ for name in WAITING):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores_are_shared(cores, *loads()):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    else:
        os.environ["GOMP_SPINCOUNT"] = "3000"


def cores_are_shared(cores: int, minute: float, now: int | None) -> bool:
    """Whether others want a quarter of the cores or more, in the last minute and now.

    The first also holds what is over, such as the command before this one; the second also what is over at once.
    """
    return minute >= cores if now is None else min(minute, now) >= cores / 4


def loads() -> tuple[float, int | None]:
    """How many processes wanted a core in the last minute, and how many others do now; nobody where none can tell."""
    try:
        minute = os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0, None
    try:
        return minute, int(LOADS.read_text(encoding="utf-8").split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return minute, None


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
