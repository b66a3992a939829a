"""Work done ahead of time in a background thread, so that the consumer need not wait for it."""

import atexit
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import Generic, TypeVar

Item = TypeVar("Item")
PATIENCE = 30.0  # seconds that the end of a program waits for what is still being made


class _Background(threading.Thread):
    """A daemon, so that no program waits for it without end."""

    def __init__(self, work: Callable[[], None], abandon: Callable[[], None]) -> None:
        super().__init__(target=work, daemon=True)
        self.abandon = abandon


@atexit.register
def _leave_none_behind() -> None:
    """Before the interpreter ends: it ends each thread that goes on where that next asks for Python's lock.

    A thread that is inside of torch or of a tokenizer then, be it to free a tensor, ends the whole program by an abort.
    """
    until = time.monotonic() + PATIENCE
    left = [thread for thread in threading.enumerate() if isinstance(thread, _Background)]
    for thread in left:
        thread.abandon()
    for thread in left:
        thread.join(max(0.0, until - time.monotonic()))


class Ahead(Generic[Item]):
    """A value being computed in the background; `result()` waits for it, and raises what its computation raised.

    `abandon` is called where the program ends before: whoever can end the computation early does so.
    """

    def __init__(self, compute: Callable[[], Item], abandon: Callable[[], None] = lambda: None):
        self._outcome: Future[Item] = Future()
        # No pool, which would take milliseconds to begin.
        _Background(lambda: self._settle(compute), abandon).start()

    def _settle(self, compute: Callable[[], Item]) -> None:
        with ExitStack() as stack:
            stack.push(self._handed_over)
            self._outcome.set_result(compute())

    def _handed_over(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """Whatever went wrong is for the one who waits, and for nobody else."""
        if error is not None:
            self._outcome.set_exception(error)
        return True

    def is_done(self, seconds: float) -> bool:
        """Whether it is computed, or went wrong, within so many seconds from now."""
        return bool(wait((self._outcome,), seconds).done)

    def result(self) -> Item:
        return self._outcome.result()


def prefetched(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """The same items, of which up to `depth` are made in the background before they are asked for."""
    ready: queue.Queue[Item | None] = queue.Queue(maxsize=depth)
    abandoned = threading.Event()

    def fill() -> None:
        try:
            for item in items:
                if not offer(item):
                    return
        finally:
            offer(None)  # also after an error, which `result()` raises below

    def offer(item: Item | None) -> bool:
        while not abandoned.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    filling = Ahead(fill, abandoned.set)
    try:
        while (item := ready.get()) is not None:
            yield item
        filling.result()
    finally:
        abandoned.set()
