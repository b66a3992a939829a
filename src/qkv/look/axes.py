"""Axes of a plot: where a value stands between two ends, and which values deserve a mark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from qkv.errors import QkvError


class Scale(Protocol):
    def place(self, value: float, low: float, high: float) -> float:
        """0 at `low`, 1 at `high`."""

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        """The two ends of an axis that shows these values."""

    def marks(self, low: float, high: float) -> list[float]:
        """Round values between the ends, about five of them."""


@dataclass(frozen=True)
class Linear:
    """Equal distances are equal differences."""

    def place(self, value: float, low: float, high: float) -> float:
        return (value - low) / (high - low)

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        low, high = min(values), max(values)
        if low == high:
            return low - 0.5, high + 0.5
        return low, high

    def marks(self, low: float, high: float) -> list[float]:
        rough = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


@dataclass(frozen=True)
class Logarithmic:
    """Equal distances are equal ratios: for counts of operations and for losses that fall by factors."""

    def place(self, value: float, low: float, high: float) -> float:
        return math.log(value / low) / math.log(high / low)

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        low, high = min(values), max(values)
        if low <= 0:
            raise QkvError(f"A logarithmic axis cannot show {low:g}; give values above zero or use a linear axis.")
        if low == high:
            return low / 2, high * 2
        return low, high

    def marks(self, low: float, high: float) -> list[float]:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
            found = [factor * 10.0**decade for decade in decades for factor in factors]
            found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
            if len(found) >= 3:
                break
        return found[:: math.ceil(len(found) / 8)] if found else [low, high]


@dataclass(frozen=True)
class Axis:
    """What an axis measures, and how."""

    label: str
    scale: Scale = Linear()


def figure(value: float) -> str:
    """A number as short as it can be read: 0.25, 12,000, 3e18."""
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
