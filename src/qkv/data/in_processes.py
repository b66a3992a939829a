"""Rows made anew for every epoch, in processes of their own."""

import warnings
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Generic, TypeVar
from weakref import finalize

from qkv.errors import QkvError, QkvWarning

Item = TypeVar("Item")
LONG = 300.0  # seconds without rows after which a person is told, and told again


class InProcesses(Generic[Item]):
    """A function from epoch to rows, for `Batches`, whose calls for the epochs to come run beside the loop.

    Cutting or pairing hundreds of thousands of texts holds Python's lock for seconds, which would stall a loop that
    feeds a GPU; so other processes do it, each a whole epoch, while the loop trains on an epoch made before. `make`
    must be something that can be sent to another process. A process that dies ends the run with a sentence; one that
    takes longer than `patience` seconds is told of, and waited for.
    """

    def __init__(self, make: Callable[[int], Item], workers: int = 1, patience: float = LONG) -> None:
        self._patience = patience
        self._workers = ProcessPoolExecutor(workers, get_context("spawn"), _prepare, (make,))
        # Processes that nobody needs any more end, also where this one is itself a worker: it would wait for them.
        finalize(self, self._workers.shutdown, cancel_futures=True)
        self._ahead = workers
        self._coming: dict[int, Future[Item]] = {}

    def __call__(self, epoch: int) -> Item:
        try:
            for coming in range(epoch, epoch + self._ahead + 1):
                if coming not in self._coming:
                    self._coming[coming] = self._workers.submit(_make, coming)
            return self._patiently(self._coming.pop(epoch), epoch)
        except BrokenProcessPool as error:
            raise QkvError(
                f"A process that made the rows of epoch {epoch} or of the {self._ahead} after it died: most often it "
                "was killed for want of memory. Make room and resume the run."
            ) from error

    def _patiently(self, rows: "Future[Item]", epoch: int) -> Item:
        waited = 0.0
        while True:
            try:
                return rows.result(self._patience)
            except TimeoutError:
                if rows.done():  # just now, or by a time limit of the making's own
                    return rows.result()
                waited += self._patience
                warnings.warn(
                    f"The rows of epoch {epoch} are still being made in another process after {waited:g} seconds.",
                    QkvWarning,
                    stacklevel=2,
                )


_work: dict[str, Callable[[int], Any]] = {}  # in a worker process


def _prepare(make: Callable[[int], Any]) -> None:
    _work["make"] = make


def _make(epoch: int) -> Any:
    return _work["make"](epoch)
