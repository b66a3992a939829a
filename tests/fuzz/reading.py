"""One damaged input read: a number tells which kind, which seed and what damage, so that it can be repeated."""

from __future__ import annotations

import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from qkv.errors import QkvError
from tests.fuzz.audit import Forbidden, Hook
from tests.fuzz.folders import Content, Place, Seed, changes_of
from tests.fuzz.targets import Target

MOST_SECONDS = 5.0  # of the processor's time, for files of a few kilobytes
MOST_WAITING = 20.0  # by the clock, for what waits for something that never comes
MOST_MEMORY = 128 * 2**20  # bytes by which one such file may raise what the process takes at most
LONGEST_SENTENCE = 5000  # letters of what a person is told


class TooSlow(BaseException):
    """Raised into a reader that does not come back."""


@dataclass(frozen=True)
class Input:
    """What a number stands for."""

    number: int
    target: Target
    seed: Seed
    changes: Mapping[str, Content]


@dataclass(frozen=True)
class Outcome:
    """`loaded`, `refused` by a sentence, or what should not be; where and how that came about."""

    kind: str
    seconds: float = 0.0
    where: str = ""
    trace: str = ""
    told: str = ""  # the sentence of a refusal

    @property
    def is_finding(self) -> bool:
        return self.kind not in ("loaded", "refused")


def input_of(number: int, targets: Sequence[Target]) -> Input:
    random = Random(number)
    (target,) = random.choices(targets, [each.share for each in targets])
    seed = random.choice(target.seeds)
    changes = changes_of(seed, random, endless=not target.named)
    if target.settle is not None and random.random() < 0.5:
        whole: dict[str, Content] = {**seed.files, **changes}
        target.settle(whole)
        changes = {name: content for name, content in whole.items() if content != seed.files[name]} or changes
    return Input(number, target, seed, changes)


def read_input(one: Input, place: Place, hook: Hook | None = None) -> Outcome:
    """Write the damaged folder, and read it."""
    folder = place.folder(one.target.name, one.seed)
    place.damage(folder, one.seed, one.changes)
    return _judged(lambda: one.target.read(folder, one.seed), hook)


def _judged(read: Callable[[], Any], hook: Hook | None) -> Outcome:
    before, began = _peak(), time.process_time()
    kind, error, told = "loaded", None, ""
    try:
        with _limited(), hook.watching() if hook else nullcontext():
            read()
    except QkvError as refusal:
        kind, told = "refused", str(refusal)
        if not str(refusal) or len(str(refusal)) > LONGEST_SENTENCE:
            kind, error = f"a sentence of {len(str(refusal))} letters", refusal
    except TooSlow as slow:
        kind, error = "too slow", slow
    except Forbidden as forbidden:
        kind, error = f"forbidden: {forbidden}", forbidden
    except MemoryError as memory:
        kind, error = "memory", memory
    except BaseException as other:
        if isinstance(other, KeyboardInterrupt):
            raise
        kind, error = type(other).__name__, other
    seconds = time.process_time() - began
    if hook and hook.seen and not kind.startswith("forbidden"):
        kind = f"forbidden: {hook.seen[-1]}"
    if hook:
        hook.seen.clear()
    grown = (_peak() - before) * 1024
    if grown > MOST_MEMORY and kind in ("loaded", "refused"):
        kind = f"memory grew by {grown >> 20} MiB"
    trace = "" if error is None else "".join(traceback.format_exception(error, limit=-12))[-6000:]
    return Outcome(kind, seconds, "" if error is None else _where(error), trace, told)


def _peak() -> int:
    """Kibibytes that the process has taken at most so far; of a thread, which is asked sooner than of all of them."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_maxrss


def _where(error: BaseException) -> str:
    """The last line of ours that it came through."""
    lines = [each for each in traceback.extract_tb(error.__traceback__) if "/qkv/" in each.filename]
    return f"{lines[-1].filename.rpartition('/qkv/')[2]}:{lines[-1].lineno}" if lines else "outside"


@contextmanager
def _limited() -> Iterator[None]:
    """Whatever takes longer than it may is ended, as soon as it comes back to the interpreter."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MOST_WAITING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def end_what_is_slow() -> None:
    """To be called once in a process; nor are warnings for anyone there."""
    warnings.simplefilter("ignore")

    def end(signum: int, frame: object) -> None:
        raise TooSlow(f"more than {MOST_SECONDS:g} seconds of work or {MOST_WAITING:g} of waiting")

    signal.signal(signal.SIGPROF, end)
    signal.signal(signal.SIGALRM, end)


def saved(one: Input, folder: Path, told: str) -> Path:
    """Keep an input as files, to be looked at and to become a test."""
    place = folder / f"{one.number:010d}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "finding.txt").write_text(
        f"{one.target.name}, seed {one.seed.name}, changed {', '.join(one.changes)}\n{told}\n", encoding="utf-8",
        errors="backslashreplace",
    )  # fmt: skip
    for name, content in one.changes.items():
        kept = place / name.replace("/", "_")
        kept.write_bytes(content if isinstance(content, bytes) else repr(content).encode())
    return place
