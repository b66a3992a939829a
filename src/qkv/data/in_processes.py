"""Rows made anew for every epoch, in processes of their own."""

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Generic, TypeVar
from weakref import finalize

Item = TypeVar("Item")


class InProcesses(Generic[Item]):
    """A function from epoch to rows, for `Batches`, whose calls for the epochs to come run beside the loop.

    Cutting or pairing hundreds of thousands of texts holds Python's lock for seconds, which would stall a loop that
    feeds a GPU; so other processes do it, each a whole epoch, while the loop trains on an epoch made before. `make`
    must be something that can be sent to another process.
    """

    def __init__(self, make: Callable[[int], Item], workers: int = 1) -> None:
        self._workers = ProcessPoolExecutor(workers, get_context("spawn"), _prepare, (make,))
        # Processes that nobody needs any more end, also where this one is itself a worker: it would wait for them.
        finalize(self, self._workers.shutdown, cancel_futures=True)
        self._ahead = workers
        self._coming: dict[int, Future[Item]] = {}

    def __call__(self, epoch: int) -> Item:
        for coming in range(epoch, epoch + self._ahead + 1):
            if coming not in self._coming:
                self._coming[coming] = self._workers.submit(_make, coming)
        return self._coming.pop(epoch).result()


_work: dict[str, Callable[[int], Any]] = {}  # in a worker process


def _prepare(make: Callable[[int], Any]) -> None:
    _work["make"] = make


def _make(epoch: int) -> Any:
    return _work["make"](epoch)
