"""Signals are noted once, then act as before; where they cannot be caught nothing breaks."""

import os
import signal
import threading

import pytest

from qkv.train.interrupts import StopSignals


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.received is None
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_trains_without_signals() -> None:
    seen: list[object] = []

    def work() -> None:
        with StopSignals() as signals:
            seen.append(signals.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]
