"""A long run: stretches of inputs shared out to worker processes; what is done is noted, so that it can go on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from tests.fuzz.folders import Place
from tests.fuzz.reading import Input, input_of, read_input, saved
from tests.fuzz.targets import TARGETS, make_seeds
from tests.fuzz.worker import Stretch, Worker

DONE = "done.jsonl"  # a line for each stretch


def prepare(home: Path) -> None:
    """Make the seeds, or take those of earlier stretches, and read each once: imports and caches are warm then."""
    home.mkdir(parents=True, exist_ok=True)
    make_seeds(home / "seeds", TARGETS)
    place = Place(home / "warm")
    for target in TARGETS:
        for seed in target.seeds:
            outcome = read_input(Input(-1, target, seed, {}), place)
            assert outcome.kind == "loaded", f"the seed {seed.name} of {target.name}: {outcome.told or outcome.trace}"


def done(home: Path) -> list[Stretch]:
    file = home / DONE
    lines = file.read_text().splitlines() if file.exists() else []
    return [Stretch(**json.loads(line)) for line in lines]


def run(home: Path, first: int, count: int, workers: int, each: int, console: Console) -> list[Stretch]:
    """Read the inputs `first` to `first + count`, but for stretches in which an earlier run found nothing."""
    prepare(home)
    clean = [stretch for stretch in done(home) if not stretch.findings]
    (home / DONE).write_text("".join(json.dumps(asdict(stretch)) + "\n" for stretch in clean))
    finished = {stretch.first for stretch in clean}
    waiting = [start for start in range(first, first + count, each) if start not in finished]
    began, read, total = time.monotonic(), 0, len(waiting) * each
    for stretch in _stretches(home, waiting, min(first + count, 2**62), workers, each):
        with (home / DONE).open("a") as stream:
            stream.write(json.dumps(asdict(stretch)) + "\n")
        read += each
        speed = read / (time.monotonic() - began)
        left = max(0, total - read) / speed / 60
        found = f", {len(stretch.findings)} findings" if stretch.findings else ""
        console.print(f"{read:,} of {total:,} inputs, {speed:,.0f} a second, {left:.0f} minutes left{found}")
    return [stretch for stretch in done(home) if first <= stretch.first < first + count]


def _stretches(home: Path, waiting: list[int], end: int, workers: int, each: int) -> Iterator[Stretch]:
    """Results as they come; an input that ended its worker is a finding, and the others of its stretch are read."""
    to_do: list[tuple[int, dict[int, str]]] = [(start, {}) for start in reversed(waiting)]
    busy: list[tuple[Worker, dict[int, str]]] = []
    while to_do or busy:
        while to_do and len(busy) < workers:
            start, blamed = to_do.pop()
            busy.append((Worker(start, min(start + each, end), home, blamed), blamed))
        time.sleep(0.05)
        for worker, blamed in list(busy):
            reason = worker.died_of()
            if reason is None and not worker.is_done:
                continue
            busy.remove((worker, blamed))
            if reason is not None:
                number = worker.number
                trace = worker.trace.read_text(errors="replace")[-4000:] if worker.trace.exists() else ""
                saved(input_of(number, TARGETS), home / "findings", f"{reason}\n{trace}")
                to_do.append((worker.first, {**blamed, number: reason}))
                continue
            stretch = worker.told()
            for number, why in blamed.items():
                one = input_of(number, TARGETS)
                stretch.add(one.target.name, "finding", 0.0)
                stretch.findings.append(
                    {"number": number, "target": one.target.name, "seed": one.seed.name, "kind": why, "where": ""}
                )
            yield stretch
