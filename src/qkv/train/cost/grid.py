"""Reading between measured points: rates and times as functions of sizes, on logarithmic scales."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """The value at a size, from points (size, value) in rising order: straight between them on logarithmic scales.

    Beyond the last point it grows in proportion, below the first it stays.
    """
    sizes = [size for size, _ in points]
    if at <= sizes[0]:
        return points[0][1]
    if at >= sizes[-1]:
        return points[-1][1] * at / sizes[-1]
    right = bisect.bisect_left(sizes, at)
    (low, first), (high, second) = points[right - 1], points[right]
    share = math.log(at / low) / math.log(high / low)
    return first * (second / first) ** share


class Grid:
    """Values at points of several sizes, read by interpolation along each; outside, the nearest edge holds."""

    def __init__(self, values: Mapping[tuple[float, ...], float]) -> None:
        dimensions = range(len(next(iter(values))))
        self.axes = [sorted({point[axis] for point in values}) for axis in dimensions]
        self.values = dict(values)

    def at(self, *sizes: float) -> float:
        sides = [_sides(axis, size) for axis, size in zip(self.axes, sizes, strict=True)]
        total = 0.0
        for corner in itertools.product(*sides):
            weight = math.prod(share for _, share in corner)
            if weight:
                total += weight * math.log(self._value(tuple(size for size, _ in corner)))
        return math.exp(total)

    def _value(self, point: tuple[float, ...]) -> float:
        """A point that was not measured, being too large or too slow, is taken to be as the nearest that was."""
        if point not in self.values:
            near = min(
                self.values, key=lambda other: sum(math.log(a / b) ** 2 for a, b in zip(point, other, strict=True))
            )
            self.values[point] = self.values[near]
        return self.values[point]


def _sides(axis: Sequence[float], size: float) -> list[tuple[float, float]]:
    """The two points of an axis beside a size, and the share of each."""
    if size <= axis[0]:
        return [(axis[0], 1.0)]
    if size >= axis[-1]:
        return [(axis[-1], 1.0)]
    right = bisect.bisect_left(axis, size)
    low, high = axis[right - 1], axis[right]
    share = math.log(size / low) / math.log(high / low)
    return [(low, 1 - share), (high, share)]
