"""How speed goes with size on a GPU: training by length, rows, width and depth; decoding by context and rows.

    python bench/scaling_gpu.py          # about 100 s
    python bench/scaling_gpu.py --small  # tiny, on a CPU, to see that it runs; writes nothing
    python bench/scaling_gpu.py --only "training, by length"  # other curves of the same machine stay as they are

A model of GPT-2's kind, 124M where nothing else is said, in bfloat16; steps of training are streamed and recorded, as
they are by default. Every point stands beside what the machine's limits allow: the matrix products of a training step
at the speed of a product of 8192² numbers, or the bytes of weights and slots that a token reads at the speed of a copy.
A point that reaches less than two thirds of its left neighbour's share of the limit is called a cliff, and has to be
explained.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from gpt2_training_gpu import HEAD, PLAIN, our_step
from gpu import RESULTS, limits, machine, milliseconds, report
from peers import Bench, clear, rounded
from same_weights import NARROW, many_bytes, operations, ours_of, parameters_of

from qkv.generate.language import Options, TextWriter
from qkv.models.gpt2 import SIZES, GPT2Sizes
from qkv.train.streamed import streamed_stacks

CLIFF = 2 / 3
TOKENS = 32768  # of a training step by length
LENGTH, ROWS = 1024, 8
FEW, MANY, PAIRS = 32, 160, 9  # tokens written: the difference of their times is that of steps alone
PROMPT = 128
TINY = {"vocabulary": 300, "positions": 64, "width": 48, "hidden": 192, "heads": 3, "layers": 2}


@dataclass(frozen=True)
class Point:
    """Seconds of a call that does `amount`, and the least it could take."""

    amount: float
    seconds: float
    least: float


@dataclass(frozen=True)
class Curve:
    of: str  # what is on the x axis
    places: tuple[int, ...]
    small: tuple[int, ...]
    measure: Callable[[Bench, int], Point]


def base(bench: Bench, **given: Any) -> GPT2Sizes:
    return replace(SIZES["base"], **{**PLAIN, **(TINY if bench.small else {}), **given})


def seconds_of(call: Callable[[], object], bench: Bench, **how: Any) -> float:
    if bench.device.type == "cuda":
        return milliseconds(call, **how) / 1e3
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def differences(longer: Callable[[], object], shorter: Callable[[], object], bench: Bench) -> list[float]:
    """Seconds that the longer call takes beyond the shorter, both in turns, so that neither has the quicker minutes."""
    once = {"budget": 0.0, "at_least": 1, "warm": 0}
    for call in (longer, shorter, longer, shorter):  # what is compiled or recorded is so by now
        call()
    return [seconds_of(longer, bench, **once) - seconds_of(shorter, bench, **once) for _ in range(bench.pick(PAIRS, 1))]


def training(bench: Bench, sizes: GPT2Sizes, rows: int, length: int) -> Point:
    model = ours_of("gpt2", sizes, HEAD, bench)
    ids = torch.randint(0, sizes.vocabulary, (rows, length + 1), device=bench.device)
    flops = 3 * rows * operations("gpt2", sizes, HEAD, torch.empty(1, length, dtype=torch.long, device="meta"))
    least = limits().seconds(flops=flops) if bench.device.type == "cuda" else 0.0
    with streamed_stacks(model):
        seconds = seconds_of(our_step(model, ids), bench, budget=200.0)
    return Point(rows * length, seconds, least)


def by_length(bench: Bench, length: int) -> Point:
    return training(bench, base(bench, positions=length), bench.pick(TOKENS, 64) // length, length)


def by_rows(bench: Bench, rows: int) -> Point:
    return training(bench, base(bench), rows, bench.pick(LENGTH, 16))


def by_width(bench: Bench, width: int) -> Point:
    sizes = base(bench, width=width, hidden=4 * width, heads=width // 64 if width >= 64 else 1)
    return training(bench, sizes, bench.pick(ROWS, 2), bench.pick(LENGTH, 16))


def by_depth(bench: Bench, layers: int) -> Point:
    return training(bench, base(bench, layers=layers), bench.pick(ROWS, 2), bench.pick(LENGTH, 16))


def decoding(bench: Bench, context: int, rows: int) -> Point:
    """Steps at a context of about this many tokens: what longer outputs take beyond shorter ones."""
    few, many = bench.pick((FEW, MANY), (2, 6))
    sizes = base(bench, positions=context + many)
    writer = TextWriter(ours_of("gpt2", sizes, HEAD, bench).to(NARROW), many_bytes(sizes.vocabulary))
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(1, sizes.vocabulary, (rows, context), generator=generator).tolist()

    def written(new: int) -> Callable[[], object]:
        return lambda: writer.run_all(prompts, Options(most=new), rows=rows)

    seconds = statistics.median(differences(written(many), written(few), bench))
    amount = rows * (many - few)
    slots = 2 * sizes.layers * sizes.width * 2 * rows * (context + (few + many) / 2)
    weights = 2 * parameters_of(writer.model)
    flops = rows * parameters_of(writer.model) * 2
    step = limits().seconds(bytes=weights + slots, flops=flops) if bench.device.type == "cuda" else 0.0
    return Point(amount, seconds, step * (many - few))


def by_context(bench: Bench, context: int) -> Point:
    return decoding(bench, context, 1)


def by_rows_written(bench: Bench, rows: int) -> Point:
    return decoding(bench, bench.pick(PROMPT, 8), rows)


CURVES = {
    "training, by length": Curve(
        f"tokens of a row, {TOKENS:,} in all", (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768), (8, 16), by_length
    ),
    "training, by rows": Curve(f"rows of {LENGTH:,} tokens", (1, 2, 4, 8, 16, 32, 64), (1, 2), by_rows),
    "training, by width": Curve(
        f"width, {ROWS} rows of {LENGTH:,} tokens", (256, 384, 512, 768, 1024, 1536, 2048, 3072), (48, 64), by_width
    ),
    "training, by depth": Curve(
        f"layers, {ROWS} rows of {LENGTH:,} tokens", (2, 4, 6, 12, 24, 36, 48), (1, 2), by_depth
    ),
    "decoding, by context": Curve(
        "tokens before, one row", (128, 512, 1024, 2048, 4096, 8192, 16384, 32768), (8, 16), by_context
    ),
    "decoding, by rows": Curve(
        f"rows with {PROMPT} tokens before", (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 2), by_rows_written
    ),
}


def row_of(name: str, place: int, point: Point, before: float | None) -> tuple[dict[str, Any], float]:
    share = point.least / point.seconds
    row = {
        "curve": name,
        "x": place,
        "tokens/s": rounded(point.amount / point.seconds),
        "limit": rounded(point.amount / point.least) if point.least else "",
        "of the limit": f"{share:.0%}" if point.least else "",
        "remark": "a cliff" if before and share < CLIFF * before else "",
    }
    return row, share


def measured(name: str, bench: Bench) -> list[dict[str, Any]]:
    curve, rows, before = CURVES[name], [], None
    for place in curve.small if bench.small else curve.places:
        torch.manual_seed(0)
        try:
            row, before = row_of(name, place, curve.measure(bench, place), before)
        except torch.cuda.OutOfMemoryError:
            row = {"curve": name, "x": place, "remark": "out of memory"}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        clear(bench.device)
    return rows


def beside_others(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """New rows, and those of the last results that are of other curves and came about on the same machine."""
    file, new = RESULTS / "scaling_gpu.json", {row["curve"] for row in rows}
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"machine": None}
    kept = [row for row in before["rows"] if row["curve"] not in new] if before["machine"] == machine() else []
    return sorted([*kept, *rows], key=lambda row: list(CURVES).index(row["curve"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes on a CPU, to see that it runs")
    parser.add_argument("--only", action="append", choices=list(CURVES), help="this curve alone; may be said again")
    given = parser.parse_args()
    if not given.small:
        machine()  # says at once where there is no GPU
    device = torch.device("cpu" if given.small else "cuda")
    rows = []
    for name in given.only or CURVES:
        rows += measured(name, Bench(given.small, device, Path()))
    if given.small:
        return
    axes = {name: curve.of for name, curve in CURVES.items()}
    report(
        "scaling_gpu",
        beside_others(rows),
        {"precision": "bfloat16", "model": "GPT-2's kind, random weights", "axes": axes},
    )


if __name__ == "__main__":
    main()
