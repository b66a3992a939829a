"""Work done ahead of time in a background thread, so that the consumer need not wait for it."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Ahead(Generic[Item]):
    """A value being computed in the background; `result()` waits for it, and raises what its computation raised."""

    def __init__(self, compute: Callable[[], Item]):
        self._outcome: Future[Item] = Future()
        # A daemon, so that an interrupted program does not wait for it; a pool would take milliseconds to begin.
        threading.Thread(target=self._settle, args=(compute,), daemon=True).start()

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

    filling = Ahead(fill)
    try:
        while (item := ready.get()) is not None:
            yield item
        filling.result()
    finally:
        abandoned.set()
