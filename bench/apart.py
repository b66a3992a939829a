"""Ways to do one work on a CPU, each in a process of its own.

Libraries that share a process share its cores with each other's sleepless threads: with CTranslate2 beside it torch
decodes at half its speed. So each way is made in a child, which does nothing until it is asked.

Children are forked, with all that was built before. That goes well only while the parent has computed on one thread,
so it must call `stay_single` first.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

Call = Callable[[], Any]
PROCESSES = multiprocessing.get_context("fork")


def stay_single() -> None:
    """Compute on one thread from now on: a child of a process that has others waits for them for ever."""
    torch.set_num_threads(1)


class Apart:
    """A call that another process does."""

    def __init__(self, make: Callable[[], Call], threads: int) -> None:
        """`make` gets ready what is called, over there; raises here what it raised."""
        self._pipe, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_serve, args=(make, threads, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def __call__(self) -> Any:
        return self.watched(_plainly)

    def watched(self, by: Callable[[Call], Any]) -> Any:
        """What a function of a module tells of the call."""
        self._pipe.send(by)
        return self._answer()

    def end(self) -> None:
        self._process.terminate()
        self._process.join()
        self._pipe.close()

    def _answer(self) -> Any:
        try:
            failed, answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"its process ended with code {self._process.exitcode}") from None
        if failed:
            raise answer
        return answer


def _plainly(call: Call) -> Any:
    return call()


def _serve(make: Callable[[], Call], threads: int, pipe: Connection) -> None:
    torch.set_num_threads(threads)
    try:
        call = make()
        pipe.send((False, None))
        while True:
            pipe.send((False, pipe.recv()(call)))
    except EOFError:
        return
    except Exception as error:
        pipe.send((True, _portable(error)))


def _portable(error: Exception) -> Exception:
    """Of its kind where it is one of ours, which are looked at; else what it says."""
    return error if type(error).__module__ == "peers" else RuntimeError(f"{type(error).__name__}: {error}")
