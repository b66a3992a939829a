"""Plans for 1 to 1,024 GPUs, and the table of docs/scale.md that is made of them. Nothing is run but shapes.

python bench/scale_plans.py [--size 124M] [--write]

Making the plans takes some minutes for the largest; with --write alone the page is made of those that are there.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from qkv.api.cost import cost
from qkv.api.cost_ranks import Plans, RankCost
from qkv.train.cost.prediction import Cost
from qkv.train.parallel.layout import Layout

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "scale_plans.json"
PAGE = ROOT / "docs" / "scale.md"
LENGTH, PER_NODE = 4096, 8
GPUS = (1, 8, 64, 512, 1024)
SMALL = {"vocabulary": 50257, "positions": LENGTH, "width": 768, "hidden": 2048, "heads": 12, "key_value_heads": 12,
         "layers": 12, "tied": True}  # fmt: skip
MIDDLE = {"vocabulary": 32000, "positions": LENGTH, "width": 2048, "hidden": 5632, "heads": 32, "key_value_heads": 32,
          "layers": 28}  # fmt: skip
BATCH = 1024  # rows that an update has at most: 4 Mi tokens, beyond which larger ones teach little more
# (sizes, rows of a GPU where the batch has so many)
MODELS: dict[str, tuple[Any, int]] = {"124M": (SMALL, 8), "1.5B": (MIDDLE, 4), "7B": ("2-7b", 2), "70B": ("2-70b", 1)}
COMMON: dict[str, Any] = {"length": LENGTH, "precision": "bfloat16", "device": "h200"}


def planned(size: str) -> list[dict[str, Any]]:
    """The fastest layout that fits for each number of GPUs; steps of a rank are the same for all of these."""
    sizes, most = MODELS[size]
    made: list[dict[str, Any]] = []
    shared: dict[Any, Any] = {}
    useful = 0.0  # operations of a GPU, of which none is done twice
    for gpus in GPUS[1:]:
        rows = min(most, BATCH // gpus)
        plans = Plans("llama", sizes, ranks=gpus, rows=gpus * rows, **COMMON)
        plans.found = shared
        found = [(each, again) for again in (False, True) for each in candidates(plans, gpus, again)]
        fitting = [pair for pair in found if pair[0].fits]
        smallest = min(found, key=lambda pair: pair[0].memory.total)
        best, again = min(fitting or [smallest], key=lambda pair: pair[0].seconds or 0.0)
        made.append(row(size, gpus, best.layout, best, again, best.fraction_of_peak))
        useful = useful or best.flops / gpus
    alone = [cost("llama", sizes, rows=most, recompute=again, **COMMON) for again in (False, True)]
    best_alone = next((each for each in alone if each.fits), alone[1])
    assert best_alone.fraction_of_peak is not None
    share = best_alone.fraction_of_peak * useful / best_alone.flops
    return [row(size, 1, "one process", best_alone, best_alone is alone[1], share), *made]


def candidates(plans: Plans, gpus: int, again: bool) -> list[RankCost]:
    """Shards, groups of them that repeat each other, and matrices shared by the GPUs of a node."""
    found = []
    for tensor in (1, PER_NODE):
        groups = gpus // tensor
        powers = [number for number in (2**power for power in range(11)) if groups % number == 0]
        found += [Layout(replicate=number, tensor=tensor) for number in powers]
    return list(plans.tried(iter(found), again))


def row(size: str, gpus: int, layout: str, found: Cost | RankCost, again: bool, share: float | None) -> dict[str, Any]:
    sent = found.sent.values() if isinstance(found, RankCost) else []
    waits = found.waiting_seconds if isinstance(found, RankCost) else 0.0
    return {
        "size": size,
        "gpus": gpus,
        "rows": min(MODELS[size][1], BATCH // gpus),
        "layout": layout,
        "recompute": again,
        "memory": found.memory.total,
        "fits": bool(found.fits),
        "within": sum(each[0] for each in sent),
        "between": sum(each[1] for each in sent),
        "seconds": found.seconds,
        "waiting": waits,
        "share": share,
        "per_second": found.per_second,
    }


def table(rows: list[dict[str, Any]], columns: dict[str, Any]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(str(show(each)) for show in columns.values()) + " |" for each in rows])


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f}" if size else "—"


FIGURES: dict[str, Any] = {
    "layout": lambda each: each["layout"].replace(",", ", ") + (" + recompute" if each["recompute"] else ""),
    "GiB a GPU": lambda each: f"{each['memory'] / 2**30:.0f}" + ("" if each["fits"] else ": too much"),
    "GB sent within a node": lambda each: gigabytes(each["within"]),
    "GB sent between nodes": lambda each: gigabytes(each["between"]),
    "step": lambda each: f"{1e3 * each['seconds']:.0f} ms" if each["fits"] else "",
    "of it waiting": lambda each: f"{1e3 * each['waiting']:.0f} ms" if each["fits"] else "",
    "utilisation": lambda each: f"{100 * each['share']:.0f}%" if each["fits"] else "",
}


def written(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with its table made anew."""
    named = {
        "model": lambda each: each["size"],
        "GPUs": lambda each: f"{each['gpus']:,}",
        "rows of a GPU": lambda each: each["rows"],
    }
    tokens = {"tokens a second": lambda each: f"{each['per_second']:,.0f}" if each["fits"] else ""}
    begin, end = "<!-- plans -->\n", "\n<!-- end of plans -->"
    before, rest = page.split(begin)
    return before + begin + table(rows, {**named, **FIGURES, **tokens}) + end + rest.split(end)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(MODELS), action="append", help="only this; may be given again")
    parser.add_argument("--write", action="store_true", help="alone: only the page, of plans that are there")
    given = parser.parse_args()
    old = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    sizes = given.size or ([] if given.write and old else list(MODELS))
    made: dict[str, list[dict[str, Any]]] = {
        size: [each for each in old if each["size"] == size] for size in MODELS
    }  # fmt: skip
    for size in sizes:
        print(size, file=sys.stderr)
        made[size] = planned(size)
        rows = [each for size in MODELS for each in made[size]]
        RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    rows = [each for size in MODELS for each in made[size]]
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
