"""Experts on several ranks without numbers: as many tokens come to a rank's experts as leave it for those of others.

What travels is taken to be spread evenly, which is what routers learn to do; how full places are makes no difference
where experts have a capacity. [lepikhin2021 §3.2]

Shapes: r ranks, e experts, n rows, d width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.experts import Mixture, by_expert
from qkv.parts.grouped import EvenGroups, GroupedLinear, Groups
from qkv.parts.routing import Routing, Tally
from qkv.train.cost.ranks_links import EXCHANGE, FIGURES, SUM, TOKENS_BACK, TOKENS_FORWARD
from qkv.train.cost.ranks_notes import Notes
from qkv.train.parallel.experts import EvenTravellers, HeldExperts
from qkv.train.parallel.layout import Layout


def travelling(model: nn.Module, layout: Layout, notes: Notes) -> None:
    """Leave the model a rank's experts, and have tokens travel to those of others."""
    mixtures = [module for module in model.modules() if isinstance(module, Mixture)]
    if not mixtures:
        raise QkvError("This model has no experts to be divided: leave out expert, or choose a model that has some.")
    seeing = layout.data * layout.context
    for mixture in mixtures:
        if mixture.router.experts % layout.expert:
            raise QkvError(
                f"{mixture.router.experts} experts cannot be divided evenly among {layout.expert} ranks: choose a "
                "number for expert that divides them."
            )
        if seeing > 1:
            mixture.over_all = _Added(seeing, layout.tensor, notes)
        if layout.expert > 1:
            mixture.grouping = _Travel(layout, notes)
            for linear in [module for module in mixture.modules() if isinstance(module, GroupedLinear)]:
                experts, inputs, outputs = linear.weight.shape
                fewer = torch.empty(experts // layout.expert, inputs, outputs, dtype=linear.weight.dtype, device="meta")
                linear.weight = nn.Parameter(fewer, linear.weight.requires_grad)
                linear.__class__ = _Held


class _Held(HeldExperts):
    """A rank's experts, plainly its own."""

    def forward(self, x: Tensor, groups: Groups | EvenGroups) -> Tensor:
        return GroupedLinear.forward(self, x, groups)


class _Added:
    """What ranks tallied, added up."""

    def __init__(self, ranks: int, apart: int, notes: Notes) -> None:
        self.ranks, self.apart, self.notes = ranks, apart, notes

    def __call__(self, sums: Tally) -> Tally:
        self.notes.now((FIGURES, FIGURES), SUM, self.ranks, self.apart, sums.packed)
        self.notes.on_the_way_back(FIGURES, SUM, self.ranks, self.apart, sums.packed)
        return sums


class _Travel:
    """Stands for `qkv.train.parallel.experts.Travel`."""

    def __init__(self, layout: Layout, notes: Notes) -> None:
        self.layout, self.notes = layout, notes

    def __call__(self, routing: Routing) -> Groups | EvenGroups:
        own, ranks = by_expert(routing), self.layout.expert
        trip = _Trip(ranks, self.layout.context * self.layout.tensor, self.notes)
        if isinstance(own, EvenGroups):
            travellers = EvenTravellers(own, [own.places] * ranks, None)  # type: ignore[arg-type]
            travellers.trip = trip  # type: ignore[assignment]
            return travellers
        counts = own.ends.long()
        self.notes.now((FIGURES, FIGURES), EXCHANGE, ranks, trip.apart, counts)
        return _AsMany(own, trip)


class _AsMany(Groups):
    """As many rows of all ranks as this one sent away, sorted by this rank's experts."""

    def __init__(self, own: Groups, trip: _Trip) -> None:
        super().__init__(own.group.long(), own.groups // trip.ranks)
        self.own, self.trip = own, trip

    def sort(self, x: Tensor, copies: int = 1) -> Tensor:
        return super().sort(self.trip.there(self.own.sort(x, copies)))

    def restore(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.own.restore(self.trip.back(super().restore(x)), weights)


class _Trip:
    def __init__(self, ranks: int, apart: int, notes: Notes) -> None:
        self.ranks, self.apart, self.notes = ranks, apart, notes

    def there(self, x: Tensor) -> Tensor:
        self.notes.now((TOKENS_FORWARD, TOKENS_BACK), EXCHANGE, self.ranks, self.apart, x)
        self.notes.on_the_way_back(TOKENS_BACK, EXCHANGE, self.ranks, self.apart, x)
        arrived: Tensor = _Sent.apply(x)
        return arrived

    back = there


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.empty_like(gradient)
