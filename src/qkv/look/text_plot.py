"""Training curves in a terminal: plain characters, as wide as there is room."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from qkv.errors import QkvError
from qkv.look.axes import Axis, figure
from qkv.look.curves import Curve

MARKS = "*o+x#@%&"  # of the curves, in their order
LEAST_WIDTH = 40


def text_plot(curves: Sequence[Curve], x: Axis, y: Axis, title: str = "", width: int = 80, height: int = 16) -> str:
    """The plot as lines of text. Where two curves meet, the later one is seen."""
    points = [
        [(float(a), float(b)) for a, b in zip(curve.x, curve.y, strict=True) if math.isfinite(a) and math.isfinite(b)]
        for curve in curves
    ]
    shown = [point for curve in points for point in curve]
    if not shown:
        raise QkvError("There is nothing to plot: none of the curves has a point with finite values.")
    x_low, x_high = x.scale.ends([point[0] for point in shown])
    y_low, y_high = y.scale.ends([point[1] for point in shown])
    ticks = {round((height - 1) * y.scale.place(value, y_low, y_high)): value for value in y.scale.marks(y_low, y_high)}
    margin = max(len(figure(value)) for value in ticks.values())
    across = max(width, LEAST_WIDTH) - margin - 2
    rows = [[" "] * across for _ in range(height)]  # from the bottom
    for number, curve in enumerate(points):
        places = [
            ((across - 1) * x.scale.place(a, x_low, x_high), (height - 1) * y.scale.place(b, y_low, y_high))
            for a, b in curve
        ]
        for column, row in _line(places):
            rows[row][column] = MARKS[number % len(MARKS)]
    lines = [title] if title else []
    lines += [f"{MARKS[number % len(MARKS)]} {curve.name}" for number, curve in enumerate(curves)]
    lines.append(y.label)
    for number in reversed(range(height)):
        label = figure(ticks[number]) if number in ticks else ""
        lines.append(f"{label:>{margin}} |{''.join(rows[number])}".rstrip())
    lines.append(" " * margin + " +" + "-" * across)
    low, high = figure(x_low), figure(x_high)
    room = max(1, across - len(low) - len(high))
    lines.append(" " * (margin + 2) + low + f"{x.label[: max(0, room - 2)]:^{room}}" + high)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _line(places: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """The cells of points and of the straight lines between them."""
    cells = [(round(column), round(row)) for column, row in places[:1]]
    for (column, row), (to_column, to_row) in itertools.pairwise(places):
        steps = max(1, math.ceil(max(abs(to_column - column), abs(to_row - row))))
        for step in range(1, steps + 1):
            share = step / steps
            cells.append((round(column + share * (to_column - column)), round(row + share * (to_row - row))))
    return cells
