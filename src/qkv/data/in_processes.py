"""Rows made in processes of their own, beside the loop that trains on those made before."""

import signal
import traceback
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import finalize

from qkv.data.ahead import Ahead
from qkv.data.safe_path import safe_path
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
        self._workers = [_Worker(make) for _ in range(workers)]
        self._free: SimpleQueue[_Worker[Item]] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        # Processes that nobody needs any more end, also where this one is itself a worker: it would wait for them.
        finalize(self, _end, self._workers)

    def __call__(self, number: int) -> Item:
        wanted = range(number, number + self._ahead + 1)
        for coming in wanted:
            if coming not in self._coming:
                self._coming[coming] = _Job(coming, self._named(coming), self._free)
        job = self._coming.pop(number)
        self._forget_all_but(wanted[1:])  # a run that went elsewhere has no more use for others
        with ExitStack() as on_error:
            on_error.callback(self._forget_all_but, ())
            made = self._patiently(job)
            on_error.pop_all()
        return made

    def _forget_all_but(self, kept: Collection[int]) -> None:
        for number in [number for number in self._coming if number not in kept]:
            self._coming.pop(number).wanted = False

    def _patiently(self, job: "_Job[Item]") -> Item:
        waited = 0.0
        while not job.outcome.is_done(self._patience):
            waited += self._patience
            if self._limit is not None and waited >= self._limit:
                job.end()
                raise QkvError(
                    f"A process hangs: {job.at} are not made after {waited:g} seconds. Mend what it reads and resume "
                    "the run."
                )
            warnings.warn(
                f"{job.at[0].upper()}{job.at[1:]} are still being made in another process after {waited:g} seconds.",
                QkvWarning,
                stacklevel=2,
            )
        return job.outcome.result()


class _Job(Generic[Item]):
    """Rows that are wanted, made by the first worker that is free."""

    def __init__(self, number: int, at: str, free: "SimpleQueue[_Worker[Item]]") -> None:
        self.at = at  # as far as is known
        self.wanted = True
        self._worker: _Worker[Item] | None = None
        self.outcome = Ahead(lambda: self._made(number, free), self._abandon)

    def _abandon(self) -> None:
        self.wanted = False
        self.end()

    def end(self) -> None:
        """Of a process that is at it for too long."""
        if self._worker is not None:
            self._worker.end()

    def _made(self, number: int, free: "SimpleQueue[_Worker[Item]]") -> Item:
        worker = free.get()
        try:
            if not self.wanted:
                raise QkvError(f"Nobody waits for {self.at} any more.")
            self._worker = worker
            answer = worker.answer(number, self._note)
        finally:
            self._worker = None
            free.put(worker)
        if answer is None:
            raise QkvError(
                f"The process that made {self.at} died: most often it was killed for want of memory. Make room and "
                "resume the run."
            )
        kind, value = answer
        if kind == FAILED:
            raise value
        made: Item = value
        return made

    def _note(self, at: str) -> None:
        self.at = at


class _Worker(Generic[Item]):
    """A process, started when there is something to do, and anew where it died."""

    def __init__(self, make: Callable[[int], Item]) -> None:
        self.is_over = False  # from when on no process is started
        self._make = make
        self._process: BaseProcess | None = None

    def answer(self, number: int, note: Callable[[str], None]) -> tuple[str, Any] | None:
        """What the process says in the end, None where it dies before; what it says to be at is noted."""
        if self.is_over:
            return None
        if self._process is None:
            self._start()
        try:
            self._connection.send(number)
            while (said := self._connection.recv())[0] == AT:
                note(said[1])
        except (EOFError, OSError):  # the other end is gone
            self._process = None
            return None
        return said[0], said[1]

    def _start(self) -> None:
        spawned = get_context("spawn")
        self._connection, there = spawned.Pipe()
        process = spawned.Process(target=_serve, args=(there, self._make), daemon=True)
        with safe_path():
            process.start()
        there.close()
        self._process = process

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()


def _end(workers: "list[_Worker[Any]]") -> None:
    for worker in workers:
        worker.is_over = True
        worker.end()


_here: list[Connection] = []  # in a process that makes rows: what it says goes there


def now_at(rows: str) -> None:
    """Say which rows are being made, for a person to be told if that goes wrong; in a process that makes rows."""
    for connection in _here:
        connection.send((AT, rows))


def _serve(connection: Connection, make: Callable[[int], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the loop needs rows until it has stopped
    _here.append(connection)
    apart = ThreadPoolExecutor(1)  # whose outcomes are answers, also where something went wrong
    try:
        while True:
            outcome = apart.submit(make, connection.recv())
            error = outcome.exception()
            if error is None:
                connection.send((MADE, outcome.result()))
            else:
                if not isinstance(error, QkvError):
                    error.add_note("".join(traceback.format_exception(error)))
                connection.send((FAILED, error))
            del outcome, error  # not held until there is more to do
    except (EOFError, BrokenPipeError, ConnectionError):  # nobody wants any more
        pass
