"""Which learning rate? A short run whose rate rises from far too low to far too high shows it. [smith2017 §3.3]"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from qkv.errors import QkvError
from qkv.parts.attention.kernels.random_features import redraw_directions
from qkv.train.adjust import Adjust
from qkv.train.objectives.loss import Objective
from qkv.train.prefetch import Batches, Prefetch
from qkv.train.random_state import preserved_random_state, seed_everything
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
SMOOTHING = 0.9  # of the losses: what the mean keeps of itself
BELOW = 10.0  # the suggested rate is so many times below the one that had the lowest loss
SETTLING = 10  # first updates, whose rates change nothing and whose mean says how high the loss is to begin with
NOISE = 0.25  # a loss that is so much above the lowest has risen, and does not only waver


@dataclass(frozen=True)
class RateSearch:
    """Rates, the loss of the update before each was applied, and the moving mean of these."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]

    @property
    def lowest(self) -> float:
        """The rate at which the mean loss was lowest, once it had settled."""
        return min(self._settled())[1]

    @property
    def suggested(self) -> float | None:
        """A tenth of that; None where the loss never fell."""
        return self.lowest / BELOW if min(self._settled())[0] < beginning(self.losses) else None

    @property
    def has_risen(self) -> bool:
        """Whether the loss is worse than in the beginning, and by more than it wavers."""
        if len(self.losses) <= SETTLING:
            return False
        lowest = min(self._settled())[0]
        return self.smoothed[-1] - lowest > max(beginning(self.losses) - lowest, NOISE * abs(lowest))

    def _settled(self) -> list[tuple[float, float]]:
        first = min(SETTLING, len(self.rates) // 2)
        return list(zip(self.smoothed[first:], self.rates[first:], strict=True))


def beginning(losses: Sequence[float]) -> float:
    """The mean loss before anything was learned."""
    return statistics.fmean(losses[: max(1, min(SETTLING, len(losses) // 2))])


class RateFound(Exception):
    """Raised by a training that was asked to look for a rate, in place of training."""

    def __init__(self, search: RateSearch) -> None:
        super().__init__(f"A learning rate of {search.suggested:.2g} is suggested." if search.suggested else "No rate.")
        self.search = search


@dataclass(frozen=True)
class FindRate:
    """In place of an optimizer, for any training: it ends with `RateFound` before it begins, and leaves no folder.

    Rates go from `factor` times below the rate that `make` gives to `factor` times above it, each update by the same
    ratio; it ends early once the loss is worse than it began.
    """

    make: MakeOptimizer
    updates: int = 100
    factor: float = 1000.0

    def __post_init__(self) -> None:
        if self.updates < 2 or not 1 < self.factor < math.inf:
            raise QkvError(
                f"To find a rate takes 2 updates or more and a factor above 1, but there are {self.updates} and "
                f"{self.factor:g}."
            )

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.make(model)

    def search(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        settings: TrainSettings,
        adjust: Adjust | None = None,
    ) -> RateSearch:
        """Updates like those of a training; afterwards weights, data and random numbers are where they were."""
        device = settings.torch_device()
        model.to(device)
        with left_as_it_was(model, batches), preserved_random_state():
            seed_everything(settings.seed)
            adjusted = adjust is not None and not getattr(adjust, "shows", False)
            stepper = Stepper(model, objective, self.make(model), settings, adjusted=adjusted)
            usual = stepper.optimizer.param_groups[0]["initial_lr"]
            ahead = Prefetch(batches, device)
            model.train()
            search, total = RateSearch((), (), ()), 0.0
            for number in range(self.updates):
                rate = stepper.set_rate(self.factor ** (2 * number / (self.updates - 1) - 1))
                redraw_directions(model, number)
                if adjust is not None:
                    adjust(model, number + 1, 0.0)
                update = stepper.update(ahead)
                loss = float(update.total) / max(1, update.count)
                if not math.isfinite(loss):
                    break
                total = SMOOTHING * total + (1 - SMOOTHING) * loss
                mean = total / (1 - SMOOTHING ** (number + 1))
                search = RateSearch((*search.rates, rate), (*search.losses, loss), (*search.smoothed, mean))
                if search.has_risen:
                    break
            stepper.forget_records()
        if not search.losses:
            raise QkvError(f"The loss was not finite at a learning rate of {usual / self.factor:.2g}: none is found.")
        return search


@contextmanager
def left_as_it_was(model: nn.Module, batches: Batches) -> Iterator[None]:
    """Weights, what learns, the mode and the place in the data are put back at the end."""
    tensors = [tensor.detach() for tensor in itertools.chain(model.parameters(), model.buffers())]
    kept = [tensor.clone() for tensor in tensors]
    learns = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    mode, place = {module: module.training for module in model.modules()}, batches.state_dict()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in zip(tensors, kept, strict=True):
                tensor.copy_(before)
        for parameter, learned in learns:
            parameter.requires_grad_(learned)
            parameter.grad = None
        for module, was in mode.items():
            module.training = was
        batches.load_state_dict(place)
