"""One work done by ours and by peers on a CPU, in turns, beside what the two cores could do: what such scripts share.

Options of every such script:

    --small          tiny sizes, to see that it runs; nothing is written
    --only NAME      this work alone; nothing is written
    --seconds N      of timing for each work, at least two turns

Peers are not among our dependencies: `pip install onnx onnxruntime ctranslate2`. One that is not installed is named.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines announce AMX and forbid it

import torch
from apart import Apart, Call, stay_single
from common import THREADS, interleaved, read_bandwidth, report, share_of_products
from peers import Bench, Disagreement, Missing, absent, rounded
from registers import TYPES, operations_a_second

Make = Callable[[], Call]
OTHERS = ("ctranslate2", "onnxruntime")


@dataclass(frozen=True)
class Most:
    """What two cores do at best, measured in this very run, in turns with the libraries."""

    flops: Mapping[str, float]  # by precision, of what stays in registers
    bytes: float  # read from memory

    @staticmethod
    def measured() -> Most:
        return Most({kind: operations_a_second(kind, THREADS) for kind in TYPES}, read_bandwidth())

    def better(self, other: Most) -> Most:
        return Most(
            {kind: max(self.flops[kind], other.flops[kind]) for kind in self.flops}, max(self.bytes, other.bytes)
        )

    def seconds(self, flops: float = 0.0, bytes: float = 0.0, precision: str = "float32") -> float:
        """The least that such work takes."""
        return max(flops / self.flops[precision], bytes / self.bytes)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One row of a table."""

    title: str
    unit: str
    amount: float  # of these that a call does
    ways: Mapping[str, Make]  # by name: "qkv" is ours and "HF" the reference library's; each gives its answer
    agree: Callable[[Any, Any], str]  # of ours and another's answer how nearly they are equal; else `Disagreement`
    least: Callable[[Most], float]  # seconds of a call at the machine's limits
    narrow: frozenset[str] = field(default_factory=frozenset)  # ways in fewer bits: compared with no one
    precision: str = "float32"  # of all other ways


Works = Mapping[str, Callable[[Bench], Work]]


def compete(work: Work, seconds: float) -> dict[str, Any]:
    """What each way does in a second, and how ours stands beside the others."""
    calls: dict[str, Apart] = {}
    told: dict[str, str] = {}
    agreed, ours = "", None
    for name, make in work.ways.items():
        try:
            calls[name] = Apart(make, THREADS)
            answer = calls[name]()
            if ours is None:
                ours = answer
            elif name not in work.narrow:
                agreed = work.agree(ours, answer)
        except Exception as error:
            if name.startswith("qkv"):
                raise
            first = (str(error).strip().splitlines() or [""])[0][:160]
            if (failed := calls.pop(name, None)) is not None:
                failed.end()
            told[name] = f"not here: {first}" if isinstance(error, Missing) else f"failed: {first}"
    cores = Apart(lambda: Most.measured, THREADS)
    found: list[Most] = []
    in_turns = {**calls, "the cores themselves": lambda: found.append(cores())}
    times = interleaved(in_turns, seconds=seconds, at_least=2 if seconds else 1)
    most = reduce(Most.better, found)
    products = calls["qkv"].watched(share_of_products)
    for each in (cores, *calls.values()):
        each.end()
    speed = {name: work.amount / statistics.median(times[name]) for name in calls}
    row: dict[str, Any] = {"work": work.title, "unit": work.unit}
    row |= {name: rounded(speed[name]) if name in speed else told[name] for name in work.ways}
    limit = work.amount / work.least(most)
    for own in (name for name in work.ways if name.startswith("qkv")):
        narrow = own in work.narrow
        others = [name for name in speed if not name.startswith("qkv") and (narrow or name not in work.narrow)]
        which = own.removeprefix("qkv, ") + ", " if narrow else ""
        row |= {f"{which}times {name}": round(speed[own] / speed[name], 2) for name in others}
    row |= {
        "of the limit": f"{speed['qkv'] / limit:.0%}",
        "HF, of the limit": f"{speed['HF'] / limit:.0%}",
        "limit": f"{rounded(limit)} at {most.flops[work.precision] / 1e9:.0f} GFLOP/s, {most.bytes / 1e9:.1f} GB/s",
        "time in products and steps": f"{products:.0%}",
        "agreement": agreed,
        "turns": len(times["qkv"]),
    }
    return row


def need(*packages: str) -> None:
    for package in packages:
        if reason := absent(package):
            raise Missing(reason)


def near(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-3) -> str:
    """By the largest difference as a share of the largest answer."""
    far = float((ours - theirs).abs().max() / theirs.abs().max())
    if not far <= tolerance:
        raise Disagreement(f"answers differ by {far:.1e}, at most {tolerance:.0e} is allowed")
    return f"within {tolerance:.0e} of the largest answer"


def main(
    name: str, works: Works, remarks: Mapping[str, Any], seconds: float, told: Callable[[], Mapping[str, Any]] = dict
) -> None:
    """Run the script `name`, whose results go into a file of that name; each work is timed for so many seconds.

    `told` is asked at the end, for remarks that take a while.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs; nothing is written")
    parser.add_argument("--only", action="append", choices=list(works), help="this work alone; may be said again")
    parser.add_argument("--seconds", type=float, default=seconds, help="of timing for each work")
    given = parser.parse_args()
    stay_single()
    rows = []
    for each in given.only or works:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            work = works[each](Bench(given.small, torch.device("cpu"), Path(folder)))
            rows.append(compete(work, 0.0 if given.small else given.seconds))
            print(rows[-1], file=sys.stderr, flush=True)
            del work
    if given.small or given.only:
        print(*rows, sep="\n")
        return
    columns = dict.fromkeys(column for row in rows for column in row)
    report(
        name, [{column: row.get(column, "") for column in columns} for row in rows], {**remarks, **told(), **versions()}
    )


def versions() -> dict[str, str]:
    found = {}
    for package in OTHERS:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
