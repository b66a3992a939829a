"""Work done ahead of time in a background thread, so that the consumer need not wait for it.

The threads are daemons: an interrupted program does not wait for them.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Ahead(Generic[Item]):
    """A value being computed in the background; `result()` waits for it, and raises what its computation raised."""

    def __init__(self, compute: Callable[[], Item]):
        self._compute = compute
        self._outcome: list[Item] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._compute())
        except BaseException as error:  # handed to the consumer's thread, whatever it is
            self._error = error

    def result(self) -> Item:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._outcome[0]


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
