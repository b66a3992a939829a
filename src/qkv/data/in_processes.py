"""Rows made in processes of their own, beside the loop that trains on those made before."""

import signal
import traceback
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import Future
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar
from weakref import finalize

from qkv.errors import QkvError, QkvWarning

Item = TypeVar("Item")
LONG = 300.0  # seconds without rows after which a person is told, and told again
AT, MADE, FAILED = "at", "made", "failed"  # what a process says


def rows_of_epoch(number: int) -> str:
    return f"the rows of epoch {number}"


class InProcesses(Generic[Item]):
    """A function from the number of an epoch, or of a section, to rows, whose next calls run beside the loop.

    Cutting or pairing hundreds of thousands of texts holds Python's lock for seconds, which would stall a loop that
    feeds a GPU; so other processes do it, each a whole epoch or section. `make` must be something that can be sent to
    another process. A process that dies ends the run with a sentence. One that takes longer than `patience` seconds is
    told of and waited for, but for no more than `limit` seconds where one is given. What is told is `named`, or what
    `make` said with `now_at`.
    """

    def __init__(
        self,
        make: Callable[[int], Item],
        workers: int = 1,
        patience: float = LONG,
        *,
        limit: float | None = None,
        named: Callable[[int], str] = rows_of_epoch,
    ) -> None:
        self._patience, self._limit, self._named = patience, limit, named
        self._ahead = workers
        self._coming: dict[int, _Job[Item]] = {}
        self._jobs: SimpleQueue[_Job[Item] | None] = SimpleQueue()
        self._workers = [_Worker(make, self._jobs) for _ in range(workers)]
        # Processes that nobody needs any more end, also where this one is itself a worker: it would wait for them.
        finalize(self, _end, self._workers, self._jobs)

    def __call__(self, number: int) -> Item:
        wanted = range(number, number + self._ahead + 1)
        for coming in wanted:
            if coming not in self._coming:
                self._coming[coming] = _Job(coming, self._named(coming))
                self._jobs.put(self._coming[coming])
        job = self._coming.pop(number)
        self._forget_all_but(wanted[1:])  # a run that went elsewhere has no more use for others
        try:
            return self._patiently(job)
        except BaseException:
            self._forget_all_but(())
            raise

    def _forget_all_but(self, kept: Collection[int]) -> None:
        for number in [number for number in self._coming if number not in kept]:
            self._coming.pop(number).outcome.cancel()

    def _patiently(self, job: "_Job[Item]") -> Item:
        waited = 0.0
        while True:
            try:
                return job.outcome.result(self._patience)
            except TimeoutError:
                if job.outcome.done():  # just now, or by a time limit of the making's own
                    return job.outcome.result()
            waited += self._patience
            if self._limit is not None and waited >= self._limit:
                if job.process is not None:
                    job.process.kill()
                raise QkvError(
                    f"A process hangs: {job.at} are not made after {waited:g} seconds. Mend what it reads and resume "
                    "the run."
                )
            warnings.warn(
                f"{job.at[0].upper()}{job.at[1:]} are still being made in another process after {waited:g} seconds.",
                QkvWarning,
                stacklevel=2,
            )


class _Job(Generic[Item]):
    """Rows that are wanted."""

    def __init__(self, number: int, at: str) -> None:
        self.number = number
        self.at = at  # as far as is known
        self.outcome: Future[Item] = Future()
        self.process: BaseProcess | None = None  # that is at it


class _Worker(Generic[Item]):
    """A process, started when there is something to do, and the thread that talks to it."""

    def __init__(self, make: Callable[[int], Item], jobs: "SimpleQueue[_Job[Item] | None]") -> None:
        self.process: BaseProcess | None = None
        self._make = make
        self._jobs = jobs
        Thread(target=self._talk, daemon=True).start()

    def _talk(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.outcome.set_running_or_notify_cancel():
                continue
            try:
                if self.process is None:
                    self._start()
                job.process = self.process
                kind, value = self._ask(job)
            except (EOFError, OSError):  # the other end is gone
                self.process = None
                kind, value = FAILED, QkvError(
                    f"The process that made {job.at} died: most often it was killed for want of memory. Make room and "
                    "resume the run."
                )  # fmt: skip
            except Exception as error:  # what was to be sent cannot be
                kind, value = FAILED, error
            if kind == MADE:
                job.outcome.set_result(value)
            else:
                job.outcome.set_exception(value)
            del job, value  # not held until there is more to do

    def _start(self) -> None:
        spawned = get_context("spawn")
        self._connection, there = spawned.Pipe()
        process = spawned.Process(target=_serve, args=(there, self._make), daemon=True)
        process.start()
        there.close()
        self.process = process

    def _ask(self, job: "_Job[Item]") -> tuple[str, Any]:
        self._connection.send(job.number)
        while True:
            kind, value = self._connection.recv()
            if kind != AT:
                return kind, value
            job.at = value


def _end(workers: "list[_Worker[Any]]", jobs: "SimpleQueue[_Job[Any] | None]") -> None:
    for worker in workers:
        jobs.put(None)
        if worker.process is not None:
            worker.process.kill()


_here: list[Connection] = []  # in a process that makes rows: what it says goes there


def now_at(rows: str) -> None:
    """Say which rows are being made, for a person to be told if that goes wrong; in a process that makes rows."""
    for connection in _here:
        connection.send((AT, rows))


def _serve(connection: Connection, make: Callable[[int], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the loop needs rows until it has stopped
    _here.append(connection)
    try:
        while True:
            number = connection.recv()
            try:
                connection.send((MADE, make(number)))
            except (BrokenPipeError, ConnectionError):
                raise
            except Exception as error:
                if not isinstance(error, QkvError):
                    error.add_note(traceback.format_exc())
                connection.send((FAILED, error))
    except (EOFError, BrokenPipeError, ConnectionError):  # nobody wants any more
        pass
