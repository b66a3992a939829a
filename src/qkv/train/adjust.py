"""What changes from update to update besides the learning rate: what rests for a while, how surely frames choose.

Each is a value that the loop calls before an update with the model, the update's number (from 1) and the share of the
budget used before it. All that it sets follows from these, so a resumed run needs no state of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import nn

from qkv.errors import QkvError
from qkv.parts.quantise import ProductQuantiser


class Adjust(Protocol):
    """One with a true attribute `shows` changes only what shows in weights: their values, and which of them learn.

    Recorded steps find such changes; a number that the host holds would stay as it was when they were recorded.
    """

    def __call__(self, model: nn.Module, step: int, progress: float) -> None: ...


@dataclass(frozen=True)
class HeadFirst:
    """For the first `updates` the head alone learns: it is new, and would teach the rest nonsense. [baevski2020 §4.3]

    `rests` are the modules that wait. What was frozen before training begins, such as the convolutions of a model of
    sound, must not be among them: it stays frozen.
    """

    updates: int
    rests: Sequence[str] = ("embed", "stack")
    shows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.updates < 0:
            raise QkvError(f"The head learns alone for 0 updates or more, not for {self.updates}.")

    def __call__(self, model: nn.Module, step: int, progress: float) -> None:
        for name in self.rests:
            model.get_submodule(name).requires_grad_(step > self.updates)


@dataclass(frozen=True)
class FallingTemperature:
    """The temperature of quantised choices falls by the same factor with each update, to `last`. [baevski2020 §4.2]

    DIFFERS [baevski2020]: the factor follows from the budget, so that the end is reached after `share` of it; the
    paper's 0.999995 reaches it after 0.7 of its 400,000 updates.
    """

    first: float = 2.0
    last: float = 0.5
    share: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.last <= self.first or not 0 < self.share <= 1:
            raise QkvError(
                f"A temperature falls from {self.first} to a lower one above 0 within a share of the budget, not to "
                f"{self.last} within {self.share}."
            )

    def __call__(self, model: nn.Module, step: int, progress: float) -> None:
        for module in model.modules():
            if isinstance(module, ProductQuantiser):
                module.temperature = self.at(progress)

    def at(self, progress: float) -> float:
        return self.first * (self.last / self.first) ** min(1.0, progress / self.share)
