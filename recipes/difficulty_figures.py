"""What the page of `recipes/difficulty_report.py` computes of the figures of its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

VANISHED = 0.1  # a gradient below this share of the largest one is called small
STEEPER = 1.4  # a power of the depth above this is no line any more
MARGIN = 0.5  # nats below what frequencies alone give, from where on a run is said to learn
Found = dict[str, Any]


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def wirings_of(result: Found) -> list[str]:
    return list(dict.fromkeys(run["wiring"] for run in result["runs"]))


def lowest_share(values: Sequence[float]) -> float | None:
    """None where there is no gradient at all."""
    return min(values) / max(values) if max(values) > 0 else None


def told_share(share: float | None) -> str:
    if share is None:
        return "no gradient"
    return f"{share:.2f}" if share >= 0.01 else f"{share:.0e}"


def fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """R² of a straight line by least squares, and its slope."""
    slope, offset = np.polyfit(x, y, 1)
    rest = sum((value - slope * at - offset) ** 2 for at, value in zip(x, y, strict=True))
    whole = sum((value - statistics.fmean(y)) ** 2 for value in y)
    return (1 - rest / whole if whole else 0.0), float(slope)


def mean_over_seeds(result: Found, wiring: str, figure: str, stack: str) -> list[float]:
    return [
        statistics.fmean(
            each[figure][stack] for each in result["starts"] if each["wiring"] == wiring and each["layers"] == layers
        )
        for layers in result["measured"]
    ]


def growth(result: Found, figure: str, stack: str) -> dict[str, dict[str, float]]:
    """For each wiring with any change: how well a line and a logarithm of the depth fit, and the power of the depth."""
    depths = [float(depth) for depth in result["measured"]]
    found = {}
    for wiring in wirings_of(result):
        values = mean_over_seeds(result, wiring, figure, stack)
        if min(values) > 0:
            logs = [math.log(depth) for depth in depths]
            found[wiring] = {
                "line": fit(depths, values)[0],
                "logarithm": fit(logs, values)[0],
                "power": fit(logs, [math.log(value) for value in values])[1],
                "times": values[-1] / values[0],
            }
    return found


def grows_like(found: dict[str, float]) -> str:
    """In words: of a line and a logarithm the one that fits better, unless there is hardly any growth."""
    if found["power"] < 0.1:
        return "does not grow"
    if found["power"] > STEEPER:
        return "faster than a line"
    return "as a line" if found["line"] >= found["logarithm"] else "as a logarithm"


def learned(run: Found, unigram: float) -> bool:
    return not run["diverged"] and run["valid"] is not None and run["valid"] < unigram - MARGIN
