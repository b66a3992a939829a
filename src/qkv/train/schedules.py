"""Learning-rate schedules as values: (step, progress) -> what the optimizer's own rate is multiplied by.

`step` counts updates from 1. `progress` is the share of the budget used before this update, from 0 to 1; it comes from
steps or from minutes, whichever the budget names, so a schedule that decays works for both. Warm-up counts in steps,
because it waits for the optimizer's statistics to settle and those move by the step.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from qkv.errors import QkvError, nearest_or_all


class Schedule(Protocol):
    """Pure: the same step and progress give the same multiplier, so a resumed run needs no schedule state."""

    def __call__(self, step: int, progress: float) -> float: ...


@dataclass(frozen=True, kw_only=True)
class _WarmUp:
    """Shared by all but Noam: rise in a straight line to 1 over `warmup` updates, on top of the decay."""

    warmup: int = 0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise QkvError(f"Warm-up must be 0 steps or more, but is {self.warmup}.")

    def rise(self, step: int) -> float:
        return min(1.0, step / self.warmup) if self.warmup else 1.0


@dataclass(frozen=True, kw_only=True)
class Noam:
    """The schedule of the 2017 Transformer; it gives the rate itself, so the optimizer's own rate is 1."""

    width: int  # d_model
    warmup: int = 4000
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.width < 1 or self.warmup < 1:
            raise QkvError(f"Noam needs a width and a warm-up of at least 1, but got {self.width} and {self.warmup}.")

    def __call__(self, step: int, progress: float) -> float:
        return self.factor * self.width**-0.5 * min(step**-0.5, step * self.warmup**-1.5)  # [vaswani2017 eq.3]


@dataclass(frozen=True, kw_only=True)
class Constant(_WarmUp):
    """The same rate throughout."""

    def __call__(self, step: int, progress: float) -> float:
        return self.rise(step)


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(_WarmUp):
    """Noam's shape with a peak of 1: the rate falls as 1 / √step once warm-up is over."""

    def __call__(self, step: int, progress: float) -> float:
        return self.rise(step) * min(1.0, math.sqrt(max(1, self.warmup) / step))


@dataclass(frozen=True, kw_only=True)
class _Decay(_WarmUp):
    floor: float = 0.0  # the multiplier when the budget is used up

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor <= 1:
            raise QkvError(f"A schedule's floor must lie between 0 and 1, but is {self.floor}.")

    def between(self, share: float) -> float:
        """From 1 (share 1) down to the floor (share 0)."""
        return self.floor + (1 - self.floor) * share


@dataclass(frozen=True, kw_only=True)
class Cosine(_Decay):
    """Half a cosine from 1 to the floor over the whole budget, without restarts."""

    def __call__(self, step: int, progress: float) -> float:
        return self.rise(step) * self.between((1 + math.cos(math.pi * progress)) / 2)  # [loshchilov2017 eq.5]


@dataclass(frozen=True, kw_only=True)
class Linear(_Decay):
    """A straight line from 1 to the floor over the whole budget."""

    def __call__(self, step: int, progress: float) -> float:
        return self.rise(step) * self.between(1 - progress)


@dataclass(frozen=True, kw_only=True)
class TriStage:
    """A rise over the first share of the budget, full rate over the second, then a line to 0. [baevski2020 §4.3]

    Shares of the budget, not steps. It begins at a hundredth, so that the first update is one.
    """

    rise: float = 0.1
    hold: float = 0.4

    def __post_init__(self) -> None:
        if self.rise < 0 or self.hold < 0 or self.rise + self.hold >= 1:
            raise QkvError(f"Rise and hold must leave some of the budget to fall: {self.rise} and {self.hold} do not.")

    def __call__(self, step: int, progress: float) -> float:
        if progress < self.rise:
            return 0.01 + 0.99 * progress / self.rise
        return min(1.0, (1 - progress) / (1 - self.rise - self.hold))


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay(_Decay):
    """Full rate until the last `decay` share of the budget, then a straight line to the floor [hu2024 §4.2].

    DIFFERS [hu2024]: a line where the paper decays exponentially, so that the floor is reached exactly at the end.
    """

    decay: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.decay <= 1:
            raise QkvError(f"The decaying share of the budget must be above 0 and at most 1, but is {self.decay}.")

    def __call__(self, step: int, progress: float) -> float:
        return self.rise(step) * self.between(min(1.0, (1 - progress) / self.decay))


# By the names that people use. Noam's shape, whose peak is the optimizer's own rate.
SCHEDULES = {
    "cosine": Cosine,
    "linear": Linear,
    "wsd": WarmupStableDecay,
    "noam": InverseSquareRoot,
    "constant": Constant,
}


def chosen_schedule(name: str, warmup: int = 0) -> Schedule:
    if name not in SCHEDULES:
        raise QkvError(f"There is no schedule called {name!r}: {nearest_or_all(name, SCHEDULES)}")
    made: Schedule = SCHEDULES[name](warmup=warmup)
    return made
