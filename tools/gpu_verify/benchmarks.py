"""Rows of a benchmark beside those that were recorded last."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Any

from qkv.files import read_json
from tools.gpu_verify.depends import ROOT

SLOWER = 0.9  # of the last speed, below which a row has not passed
OTHERS = (
    "predicted",
    "dense",
    "bare",
    "ordinary",
    "limit",
    "reference",
    "HF",
    "timm",
    "plain",
    "sentence-transformers",
)
Rows = list[dict[str, Any]]


def results_file(script: Path) -> Path:
    return ROOT / "bench" / "results" / f"{script.stem}.json"


def rows_in(file: Path) -> Rows:
    found: Any = read_json(file)["rows"] if file.exists() else []
    return list(found)


def beside_the_last(before: Rows, now: Rows) -> tuple[bool, str]:
    """Whether none of our own figures has fallen, and what is told of them."""
    known = {_key(row): speeds(row) for row in before}
    ratios = {
        f"{' '.join(_key(row))} {column}": speed / known[_key(row)][column]
        for row in now
        for column, speed in speeds(row).items()
        if known.get(_key(row), {}).get(column)
    }
    if not ratios:
        return True, f"{len(now)} rows, none of them recorded before"
    worst = min(ratios, key=lambda name: ratios[name])
    told = (
        f"{len(ratios)} figures, {median(ratios.values()):.2f} times the last speed; least {ratios[worst]:.2f}: {worst}"
    )
    return ratios[worst] >= SLOWER, told


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    """What tells a row from others: all that stands before what was measured."""
    key = []
    for column, value in row.items():
        if isinstance(value, float) or _is_speed(column) or column.startswith(OTHERS):
            break
        key.append(str(value))
    return tuple(key)


def speeds(row: dict[str, Any]) -> dict[str, float]:
    """Our own figures by column, of which more is better."""
    found = {}
    for column, value in row.items():
        if not _is_speed(column) or column.startswith(OTHERS):
            continue
        numbers = [float(each) for each in re.findall(r"\d+\.?\d*", str(value))] if value is not None else []
        if isinstance(value, str) and not re.fullmatch(r"[\d./ ]+", value):
            continue
        for place, number in enumerate(numbers):
            if number > 0:
                name = column if len(numbers) == 1 else f"{column} {place + 1}"
                found[name] = 1 / number if _is_time(column) else number
    return found


def _is_time(column: str) -> bool:
    return bool(re.search(r"\bms\b|\bseconds\b", column))


def _is_speed(column: str) -> bool:
    return _is_time(column) or column.startswith("qkv") or column == "tokens/s"
