"""Ours against peers: one piece of work, done by each in turn with the same weights, beside what the machine could do.

A script names its works and calls `main`. Options of every such script:

    --small          tiny sizes on a CPU, to see that it runs; nothing is timed in earnest or written. With --gpu on the
                     GPU, with --compile compiled: all that a real run does, in less time
    --only NAME      this work alone; what other works have in the file of results stays, if the machine is the same
    --seconds N      for the whole script (600 if nothing is said): what finds no time is left out and named

Ours comes first. A peer that is not installed, fails or is compiled for too long is named with its reason; where a
figure of it is known from elsewhere, that is shown as given, and never counted.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines announce AMX and forbid it

import torch
from gpu import RESULTS, Limits, limits, machine, milliseconds, report, where_time_goes

Call = Callable[[], object]
Make = Callable[[ExitStack], Call]  # gets ready what is timed; what must be undone afterwards goes on the stack
SPARE = 3.0  # seconds kept for each contender that is still to come
TOLERANCE = 1e-3  # of the largest answer, in float32


class Missing(Exception):
    """A peer that cannot be had here."""


class Disagreement(Exception):
    """Ours and a peer answer differently: their times say nothing."""


@dataclass(frozen=True)
class Bench:
    """Where and how large."""

    small: bool
    device: torch.device
    folder: Path  # for files, gone afterwards
    compiles: bool = False

    def compiled(self, function: Any, **options: Any) -> Any:
        """As torch compiles it; in small it may stay as it is: compiling takes longer than all the rest."""
        return torch.compile(function, **options) if self.compiles else function

    def pick(self, large: Any, small: Any) -> Any:
        return small if self.small else large


@dataclass(frozen=True, kw_only=True)
class Work:
    """One row of a table."""

    title: str
    unit: str  # of what is done: "tokens/s"
    amount: float  # of these that a call does
    ours: Mapping[str, Make]  # by the name of the way; the first is what a user gets who asks for nothing special
    peers: Mapping[str, Make]
    agreement: Callable[[], str]  # checks that answers are equal, before anything is timed; how nearly
    least: Callable[[Limits], float] | None = None  # seconds of a call at the machine's limits
    given: Mapping[str, float] = field(default_factory=dict)  # figures of peers, measured elsewhere on an H200
    calls: int = 5  # at least so many are timed
    warm: int = 3  # and so many go before


Works = Mapping[str, Callable[[Bench], Work]]  # by the name for --only


def compete(work: Work, bench: Bench, until: float) -> Iterator[dict[str, Any]]:
    """The row of a work, after each contender anew: whoever is stopped keeps what was measured.

    What each does in a second, and how often ours does it while the best peer does it once.
    """
    row: dict[str, Any] = {"work": work.title, "unit": work.unit}
    agreed = work.agreement()
    makers = {**work.ours, **work.peers}
    found: dict[str, float] = {}
    profiles: dict[str, str] = {}
    for number, (name, make) in enumerate(makers.items()):
        left = until - time.monotonic() - SPARE * (len(makers) - number - 1)
        try:
            seconds, profile = measured(make, work, bench, left, profiled=name in work.ours)
            found[name] = work.amount / seconds
            row[name] = rounded(found[name])
            if profile:
                profiles[name] = profile
        except Exception as error:  # torch wraps what stops its compiler in an error of its own
            reason = "no time left" if isinstance(_cause(error), TimeoutError) else _told(error)
            row[name] = f"{'not here' if isinstance(error, Missing) else 'failed'}: {reason}"
            if name in work.given:
                row[name] += f"; given: {work.given[name]:,}"
        print(f"{work.title}, {name}: {row[name]} {work.unit}", file=sys.stderr, flush=True)
        clear(bench.device)
        waiting = {other: "not measured" for other in makers if other not in row}
        yield {**row, **waiting, **_compared(work, bench, found, profiles), "agreement": agreed}


def _compared(work: Work, bench: Bench, found: dict[str, float], profiles: dict[str, str]) -> dict[str, Any]:
    """Ours beside the best peer and beside the machine's limit, and what our time goes to."""
    told: dict[str, Any] = {}
    ours = [found[name] for name in work.ours if name in found]
    theirs = [found[name] for name in work.peers if name in found]
    if ours and theirs:
        told["times the best peer"] = round(max(ours) / max(theirs), 2)
    if work.least is not None and bench.device.type == "cuda":
        limit = work.amount / work.least(limits())
        told["limit"] = rounded(limit)
        if ours:
            told["of the limit"] = f"{max(ours) / limit:.0%}"
    if profiles:
        told["where our time goes"] = profiles[max(profiles, key=lambda name: found[name])]
    return told


def measured(make: Make, work: Work, bench: Bench, seconds: float, profiled: bool = False) -> tuple[float, str]:
    """Seconds of a call, the median; on a GPU, if that is asked for, what they are spent on."""
    with out_of_patience(seconds), ExitStack() as stack:
        call = make(stack)
        if bench.device.type == "cuda":
            spent = milliseconds(call, at_least=work.calls, at_most=max(20, work.calls), warm=work.warm) / 1e3
            return spent, where_time_goes(call) if profiled else ""
        before = time.perf_counter()
        call()
        return time.perf_counter() - before, ""


@contextmanager
def out_of_patience(seconds: float) -> Iterator[None]:
    """Inside, a `TimeoutError` comes after so many seconds."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    if seconds <= 0:
        raise TimeoutError
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def clear(device: torch.device) -> None:
    """What one contender leaves behind must not burden the next."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest, as a share of the largest answer."""
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max().clamp(min=1e-12))


def agree(answers: Mapping[str, torch.Tensor], tolerance: float = TOLERANCE) -> str:
    """Compare all answers with the first, which is ours; how far apart they are."""
    ours, *others = answers.values()
    for name, each in list(answers.items())[1:]:
        if each.shape != ours.shape or not difference(ours, each) <= tolerance:
            far = "has another shape" if each.shape != ours.shape else f"differs by {difference(ours, each):.1e}"
            raise Disagreement(f"what {name} answers {far}, at most {tolerance:.0e} is allowed")
    return f"{max(difference(ours, each) for each in others):.1e}, at most {tolerance:.0e}, float32"


def same_tokens(written: Mapping[str, list[list[int]]]) -> str:
    """All must have written what the first wrote, token by token."""
    ours, *others = written.values()
    for name, each in list(written.items())[1:]:
        if each != ours:
            raise Disagreement(f"{name} writes other tokens")
    return f"all {sum(map(len, ours))} tokens written are equal, {len(others) + 1} ways, float32"


def absent(package: str) -> str | None:
    """Why a package cannot be used here; None: it can."""
    try:
        import_module(package)
    except ImportError:
        return f"{package} is not installed"
    except Exception as error:
        return f"{package} cannot be imported, {_told(error)}"
    return None


def without(reason: str) -> Make:
    """In place of a peer that cannot be had."""

    def make(stack: ExitStack) -> Call:
        raise Missing(reason)

    return make


def rounded(figure: float) -> float:
    return round(figure) if figure >= 100 else float(f"{figure:.3g}")


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _told(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:160]
    return first if isinstance(error, Missing) else f"{type(error).__name__} {first}".strip()


def main(name: str, works: Works, remarks: Mapping[str, Any]) -> None:
    """Run the script `name`, whose results go into a file of that name."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--small", action="store_true", help="tiny sizes on a CPU, to see that it runs")
    parser.add_argument("--only", action="append", choices=list(works), help="this work alone; may be said again")
    parser.add_argument("--seconds", type=float, default=600.0, help="that the whole script may take")
    parser.add_argument("--compile", action="store_true", help="with --small: compile all the same")
    parser.add_argument("--gpu", action="store_true", help="with --small: on the GPU all the same")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    device = "cuda" if given.gpu or not given.small else "cpu"
    if device == "cuda":
        machine()  # says at once where there is no GPU
    torch.backends.cudnn.allow_tf32 = False  # answers are compared in float32; nothing is timed in it
    rows, failed = [], False
    for work in given.only or works:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(given.small, torch.device(device), Path(folder), given.compile or not given.small)
            torch.manual_seed(0)
            made: Work | None = None
            row: dict[str, Any] = {}
            try:
                made = works[work](bench)
                for row in compete(made, bench, until):
                    if not given.small:
                        keep(name, [*rows, row], remarks)
                failed |= any(str(row[way]).startswith("failed") for way in made.ours)
            except Exception as error:
                row = {"work": work if made is None else made.title, "failed": _told(error)}
                failed = True
            rows.append(row)
            del made
        clear(bench.device)
        if not given.small:
            keep(name, rows, remarks)
    if given.small:
        print(json.dumps({**remarks, "rows": rows}, indent=1, ensure_ascii=False))
    sys.exit(1 if failed else 0)


def keep(name: str, rows: list[dict[str, Any]], remarks: Mapping[str, Any]) -> None:
    most = limits()
    measures = {"copy": f"{most.bytes / 1e12:.2f} TB/s", "8192³ product": f"{most.flops / 1e12:.0f} TFLOP/s"}
    report(name, merged(name, rows), {**remarks, **measures})


def merged(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """New rows, and those of the last results that are not among them and came about on the same machine."""
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return rows
    before = json.loads(file.read_text(encoding="utf-8"))
    if before["machine"] != machine():
        return rows
    new = {row["work"]: row for row in rows}
    kept = [new.pop(row["work"], row) for row in before["rows"] if row["work"] in new or "failed" not in row]
    return kept + [row for row in rows if row["work"] in new]
