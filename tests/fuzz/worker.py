"""A process that reads a stretch of damaged inputs, within limits, and the one that watches over it.

A reader may crash the process, use up its memory or never come back. So inputs are read by a process of their own,
which says before each what it is about to read; where it ends before its time, or does not go on, that input is to
blame.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import multiprocessing
import os
import resource
import signal
import struct
import time
import traceback
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from multiprocessing.context import ForkProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.fuzz.audit import Hook
from tests.fuzz.folders import Place
from tests.fuzz.native import give_up_sockets_and_processes
from tests.fuzz.reading import MOST_WAITING, Outcome, end_what_is_slow, input_of, read_input, saved
from tests.fuzz.targets import TARGETS

MORE_MEMORY = 2 * 2**30  # bytes of addresses that a worker may take beside those it begins with
PATIENCE = 6 * MOST_WAITING  # seconds by the clock without a new input after which a worker is ended
OWN_FAULT = 70  # exit code of a worker that failed outside of any reader
KEPT_FINDINGS = 3  # of each kind and place that are saved as files


@dataclass
class Stretch:
    """What came of the inputs from `first` up to `end`."""

    first: int
    end: int
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)  # by kind of input
    seconds: dict[str, float] = field(default_factory=dict)  # of the processor, by kind of input
    slowest: dict[str, float] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    peak_memory: int = 0  # bytes
    begun_with: int = 0
    kernel_filter: bool = False

    def add(self, kind: str, outcome: str, seconds: float) -> None:
        told = self.outcomes.setdefault(kind, {})
        told[outcome] = told.get(outcome, 0) + 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.slowest[kind] = max(self.slowest.get(kind, 0.0), seconds)


class Worker:
    """One stretch of inputs in one process."""

    def __init__(self, first: int, end: int, home: Path, skipped: Collection[int] = ()) -> None:
        self.first, self.end, self.home, self.skipped = first, end, home, skipped
        self.answer = home / f"stretch-{first}.json"
        self.trace = home / f"stretch-{first}.trace"
        self.current = mmap.mmap(-1, 8)  # shared with the process: the number of the input that is being read
        self.current[:8] = struct.pack("<q", -1)
        self.process: ForkProcess = multiprocessing.get_context("fork").Process(target=self._work, daemon=True)
        self.process.start()
        self._seen, self._since = -1, time.monotonic()

    @property
    def number(self) -> int:
        found: int = struct.unpack("<q", self.current[:8])[0]
        return found

    def died_of(self) -> str | None:
        """Why the process is no more, though it is not done; a process that does not go on is ended."""
        number = self.number
        if number != self._seen:
            self._seen, self._since = number, time.monotonic()
        if self.process.is_alive():
            if time.monotonic() - self._since < PATIENCE:
                return None
            assert self.process.pid is not None
            os.kill(self.process.pid, signal.SIGUSR1)  # lets it write down where it is
            time.sleep(1)
            self.process.kill()
            self.process.join()
            return "hang"
        self.process.join()
        if self.answer.exists():
            return None
        code = self.process.exitcode or 0
        assert code != OWN_FAULT, f"the tool itself failed: {self.trace.read_text()}"
        return f"crash: {signal.Signals(-code).name}" if code < 0 else f"crash: exit code {code}"

    @property
    def is_done(self) -> bool:
        return not self.process.is_alive() and self.answer.exists()

    def told(self) -> Stretch:
        found = Stretch(**json.loads(self.answer.read_text()))
        self.answer.unlink()
        self.trace.unlink(missing_ok=True)
        return found

    def _work(self) -> None:
        try:
            self._read_all()
        except BaseException:
            self.trace.write_text(traceback.format_exc())
            os._exit(OWN_FAULT)
        os._exit(0)

    def _read_all(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that watches
        with self.trace.open("w") as trace, TemporaryDirectory(dir=self.home) as passing:
            faulthandler.enable(trace)
            faulthandler.register(signal.SIGUSR1, trace)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries in C grumble about every broken file
            end_what_is_slow()
            limit_memory()
            hook = Hook(Path(passing))
            stretch = Stretch(self.first, self.end, kernel_filter=give_up_sockets_and_processes())
            stretch.begun_with = peak_memory()
            place, kept = Place(Path(passing)), Counter[tuple[str, str]]()
            for number in range(self.first, self.end):
                if number in self.skipped:
                    continue
                self.current[:8] = struct.pack("<q", number)
                one = input_of(number, TARGETS)
                outcome = read_input(one, place, hook)
                stretch.add(one.target.name, "finding" if outcome.is_finding else outcome.kind, outcome.seconds)
                if outcome.is_finding:
                    stretch.findings.append(finding(number, one.target.name, one.seed.name, outcome))
                    kept[outcome.kind, outcome.where] += 1
                    if kept[outcome.kind, outcome.where] <= KEPT_FINDINGS:
                        saved(one, self.home / "findings", f"{outcome.kind}\n{outcome.trace}")
            stretch.peak_memory = peak_memory()
            passing_answer = self.answer.with_suffix(".partial")
            passing_answer.write_text(json.dumps(asdict(stretch)))
            passing_answer.rename(self.answer)


def finding(number: int, target: str, seed: str, outcome: Outcome) -> dict[str, Any]:
    return {"number": number, "target": target, "seed": seed, "kind": outcome.kind[:200], "where": outcome.where}


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_MEMORY, used + MORE_MEMORY))
