"""Validation by the objective itself: mean loss and perplexity over held-out batches."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qkv.data.doubles import doubled
from qkv.errors import QkvError
from qkv.train.objectives.loss import Batch, Loss
from qkv.train.parallel.team import Team

# Who evaluates together; the loop says it, for what is evaluated was put together before there was a team.
SHARED_BY: ContextVar[Team] = ContextVar("shared by", default=Team())  # noqa: B039 (never changed)

# What the loop calls now and then: named figures of a model.
Evaluate = Callable[[nn.Module], Mapping[str, float]]


class Measure(Protocol):
    """An objective that can tell more than its loss."""

    def measure(self, model: Any, batch: Any) -> Mapping[str, Loss]: ...


class ValidationLoss:
    """A function of the model for the loop's `evaluate`: the mean of all that the objective measures, and perplexity.

    `batches` is walked again at each evaluation, so it must be a list or the like. Ranks share it out, each of them
    measuring some batches.
    """

    def __init__(self, objective: Measure, batches: Iterable[Batch]) -> None:
        self.objective = objective
        self.batches = batches

    def __call__(self, model: nn.Module) -> dict[str, float]:
        device, team = next(model.parameters()).device, SHARED_BY.get()
        totals: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for batch, counts_here in team.measured_here(self.batches):
            for name, loss in self.objective.measure(model, batch.to(device)).items():
                total = loss.total if counts_here else torch.zeros_like(loss.total)
                totals[name] = totals[name] + total if name in totals else total
                counts[name] = counts.get(name, 0) + (loss.count if counts_here else 0)
        if not totals:
            raise QkvError("There is no batch to validate on; the validation data must hold at least one example.")
        counted = dict(zip(counts, team.summed(list(counts.values())), strict=True))
        sums = dict(zip(totals, doubled(team.total(torch.stack(list(totals.values())))).tolist(), strict=True))
        means = {name: total / max(1, counted[name]) for name, total in sums.items()}
        if "nll" in means:
            means["perplexity"] = torch.tensor(means["nll"], dtype=torch.float64).exp().item()
        return means


@contextmanager
def shared_by(team: Team) -> Iterator[None]:
    """Inside, these ranks evaluate together."""
    before = SHARED_BY.set(team)
    try:
        yield
    finally:
        SHARED_BY.reset(before)


def finite_or_none(figures: Mapping[str, float]) -> dict[str, float | None]:
    """For JSON, which has no NaN and no infinity."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
