"""By what the log-probability of an output is divided, so that long ones may compare with short ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from qkv.errors import QkvError


def penalty(length: int, exponent: float) -> float:
    """lp(Y) = ((5 + |Y|) / 6)^α, by which a log-probability is divided [wu2016 eq.14]; |Y| counts `</s>`."""
    return ((5 + length) / 6) ** exponent


Penalty = Callable[[int], float]  # the length of an output, its end counted → what its log-probability is divided by


@dataclass(frozen=True)
class _Exponent:
    exponent: float

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < math.inf:
            raise QkvError(f"The length penalty must be 0 (none) or a finite number above, but is {self.exponent}.")


class GooglePenalty(_Exponent):
    """`penalty` of a given exponent."""

    def __call__(self, length: int) -> float:
        return penalty(length, self.exponent)


class PowerPenalty(_Exponent):
    """|Y|^α, as the libraries of published language models have it: with 1, the mean log-probability of a token."""

    def __call__(self, length: int) -> float:
        return float(length**self.exponent)
