"""Ctrl-C and a polite kill while training: finish the step, save, stop."""

import signal
from types import FrameType
from typing import Any, Self


class Interrupted(Exception):
    """Training stopped on a signal with its state saved. The command line exits with `exit_code`.

    The code is 128 plus the signal's number, as shells count: 130 after Ctrl-C (SIGINT), 143 after SIGTERM. The
    message says how to go on; the loop has already shown it.
    """

    def __init__(self, message: str, received: signal.Signals) -> None:
        super().__init__(message)
        self.exit_code = 128 + received


class StopSignals:
    """Within the block the first SIGINT or SIGTERM only sets `received`; the next one acts at once, as ever.

    Signals reach the main thread alone, so elsewhere (a notebook's worker) this does nothing. A signal that was ignored
    when the block began, as `nohup` arranges, stays ignored.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler is signal.SIG_IGN:
                continue
            try:
                signal.signal(number, self._receive)
            except ValueError:  # not the main thread
                break
            self._before[number] = handler
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._give_back()

    def _give_back(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)
