"""A mixture of experts: many feed-forwards side by side, of which each token uses one or a few. [fedus2022 §2]

Shapes: b rows, s slots, d width, h hidden units, e experts, k experts that a token goes to, n = b·s·k.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from qkv.parts.context import Context
from qkv.parts.feedforward import Activation, relu, silu
from qkv.parts.grouped import EvenGroups, GroupedLinear, Groups
from qkv.parts.routing import Router, Routing, Tally, balance_loss, dropped, loads, tally, z_loss
from qkv.parts.spec import Depends

# What experts write into a ledger: two losses [], the share of tokens that chose each expert [e], and of those that
# found theirs full [].
BALANCE, ROUTER_Z, LOADS, DROPPED = "balance", "router_z", "loads", "dropped"
FIGURES = {BALANCE: balance_loss, ROUTER_Z: z_loss, LOADS: loads, DROPPED: dropped}
TALLY = "tally"  # what these are made of, packed [2e+3]: for those who make them for all layers at once

SPACIOUS = 1.25  # places for each choice from which on too many of them would stay empty

Grouping = Callable[[Routing], Groups | EvenGroups]  # how the tokens of a pass come to their experts, and back


def by_expert(routing: Routing) -> Groups | EvenGroups:
    """By expert; in places of their own where few of these stay empty, for plain products are the fastest."""
    (rows, slots, chosen), experts = routing.experts.shape, routing.logits.shape[-1]
    rooms = routing.rooms
    if rooms is None or experts * rooms.places > SPACIOUS * slots * chosen:
        if routing.counted is not None:
            return Groups.by_programs(routing.experts[..., 0], *routing.counted, experts)
        return Groups(routing.experts.flatten(), experts)
    if routing.counted is not None:
        return EvenGroups.by_programs(routing.experts[..., 0], *routing.counted, experts, rooms.places)
    text = torch.arange(rows, device=routing.experts.device)[:, None, None]
    place = (routing.experts * rows + text) * rooms.places + rooms.number  # [b s k]
    return EvenGroups(torch.where(rooms.number < rooms.places, place, -1).flatten(), experts, rows * rooms.places)


def of_this_pass(sums: Tally) -> Tally:
    """The tokens of this pass are all there are."""
    return sums


class Mixture(nn.Module, ABC):
    """Σ weight · expert(x) over the experts that the router chose; a token whose experts are full gets 0.

    `dropout` falls on the hidden units: where it is larger than elsewhere, it is expert dropout [fedus2022 §2.4].
    Where experts or tokens are elsewhere, `grouping` reaches those experts and `over_all` adds those tokens to a tally.
    """

    depends_on = Depends("router", "activation", "dropout", "outer", "grouping", "over_all")

    def __init__(self, width: int, hidden: int, router: Router, activation: Activation, dropout: float) -> None:
        super().__init__()
        self.router, self.activation, self.dropout = router, activation, nn.Dropout(dropout)
        self.outer = GroupedLinear(router.experts, hidden, width)
        self.grouping: Grouping = by_expert
        self.over_all: Callable[[Tally], Tally] = of_this_pass

    @abstractmethod
    def hidden(self, x: Tensor, groups: Groups | EvenGroups) -> Tensor:
        """The hidden units of sorted tokens. [n d] → [n h]"""

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        routing = self.router(x, ctx)
        self._record(routing, ctx)
        groups, chosen = self.grouping(routing), self.router.chosen
        tokens = groups.sort(x.flatten(0, 1), copies=chosen)  # [n d]
        made = self.outer(self.dropout(self.hidden(tokens, groups)), groups)
        made = groups.restore(made, routing.weights.flatten())  # [n d]
        if chosen > 1:
            made = made.unflatten(0, (-1, chosen)).sum(1)  # [b·s d]
        return made.unflatten(0, x.shape[:2])

    def _record(self, routing: Routing, ctx: Context) -> None:
        if ctx.ledger is None or not any(map(ctx.ledger.wants, (TALLY, *FIGURES))):
            return
        sums = self.over_all(tally(routing, ctx))
        ctx.ledger.write(self, TALLY, sums.packed)
        for kind, figure in FIGURES.items():
            if ctx.ledger.wants(kind):
                ctx.ledger.write(self, kind, figure(sums))


class Experts(Mixture):
    """Each expert is an MLP without biases: activation(x W₁) W₂. [fedus2022 §2]"""

    depends_on = Mixture.depends_on.also("inner")

    def __init__(
        self, width: int, hidden: int, router: Router, activation: Activation = relu, *, dropout: float = 0.0
    ) -> None:
        super().__init__(width, hidden, router, activation, dropout)
        self.inner = GroupedLinear(router.experts, width, hidden)

    def hidden(self, x: Tensor, groups: Groups | EvenGroups) -> Tensor:
        return self.activation(self.inner(x, groups))


class GatedExperts(Mixture):
    """Each expert is a gated MLP: (activation(x W_gate) ⊙ x W_value) W₂. [jiang2024 §2.1]"""

    depends_on = Mixture.depends_on.also("gate", "value")

    def __init__(
        self, width: int, hidden: int, router: Router, activation: Activation = silu, *, dropout: float = 0.0
    ) -> None:
        super().__init__(width, hidden, router, activation, dropout)
        self.gate = GroupedLinear(router.experts, width, hidden)
        self.value = GroupedLinear(router.experts, width, hidden)

    def hidden(self, x: Tensor, groups: Groups | EvenGroups) -> Tensor:
        return self.activation(self.gate(x, groups)) * self.value(x, groups)
