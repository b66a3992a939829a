"""`python -m tests.fuzz`: read damaged files by the hundred thousand, and say what came of it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others keep addresses that one broken file asked for

import torch
from rich.console import Console

from tests.fuzz.campaign import prepare, run
from tests.fuzz.folders import Place
from tests.fuzz.reading import end_what_is_slow, input_of, read_input
from tests.fuzz.report import page, totals
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--workers", type=int, default=2, help="processes that read")
    parser.add_argument("--each", type=int, default=5000, help="inputs of one process")
    parser.add_argument("--home", type=Path, default=ROOT / "build" / "fuzz", help="seeds, findings and what is done")
    parser.add_argument("--page", type=Path, help="where to write a page about it, such as docs/results/fuzzing.md")
    parser.add_argument("--repeat", type=int, nargs="+", metavar="NUMBER", help="read these inputs once more, and tell")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console(file=sys.stderr)
    if given.repeat:
        return repeat(given.home, given.repeat)
    began = time.time()
    stretches = run(given.home, given.first, given.inputs, given.workers, given.each, console)
    told = totals(stretches)
    (given.home / "summary.json").write_text(json.dumps(told, indent=2) + "\n")
    if given.page is not None:
        given.page.write_text(page(stretches, f"python -m tests.fuzz --inputs {given.inputs}"), encoding="utf-8")
    print(f"{told['inputs']:,} inputs, {len(told['findings'])} findings, {time.time() - began:.0f} s; {given.home}")
    return 1 if told["findings"] else 0


def repeat(home: Path, numbers: list[int]) -> int:
    prepare(home)
    end_what_is_slow()
    place, found = Place(home / "warm"), False
    for number in numbers:
        one = input_of(number, TARGETS)
        outcome = read_input(one, place)
        found |= outcome.is_finding
        print(f"{number}: {one.target.name}, {one.seed.name}, {', '.join(one.changes)}: {outcome.kind}")
        print(outcome.trace or outcome.told)
    return int(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
