"""Validation by the objective itself: mean loss and perplexity over held-out batches."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.train.objectives.loss import Batch, Loss

# What the loop calls now and then: named figures of a model.
Evaluate = Callable[[nn.Module], Mapping[str, float]]


class Measure(Protocol):
    """An objective that can tell more than its loss."""

    def measure(self, model: Any, batch: Any) -> Mapping[str, Loss]: ...


class ValidationLoss:
    """A function of the model for the loop's `evaluate`: the mean of all that the objective measures, and perplexity.

    `batches` is walked again at each evaluation, so it must be a list or the like.
    """

    def __init__(self, objective: Measure, batches: Iterable[Batch]) -> None:
        self.objective = objective
        self.batches = batches

    def __call__(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        totals: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for batch in self.batches:
            for name, loss in self.objective.measure(model, batch.to(device)).items():
                totals[name] = totals[name] + loss.total if name in totals else loss.total
                counts[name] = counts.get(name, 0) + loss.count
        if not totals:
            raise QkvError("There is no batch to validate on; the validation data must hold at least one example.")
        means = {name: float(total.double()) / max(1, counts[name]) for name, total in totals.items()}
        if "nll" in means:
            means["perplexity"] = torch.tensor(means["nll"], dtype=torch.float64).exp().item()
        return means


def finite_or_none(figures: Mapping[str, float]) -> dict[str, float | None]:
    """For JSON, which has no NaN and no infinity."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
