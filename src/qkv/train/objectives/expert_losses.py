"""What keeps experts useful, beside the loss of a task: all of them used alike, and small logits of their routers.

A model with experts writes both into the ledger of a pass, and this objective reads them there.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.context import Ledger
from qkv.parts.experts import BALANCE, DROPPED, ROUTER_Z, TALLY, Mixture
from qkv.parts.routing import Tally, balance_loss, dropped, loads, z_loss
from qkv.train.objectives.loss import Loss

NO_EXPERTS = (
    "This model has no experts, so their losses have no weights: leave these out, or choose a model with experts."
)


class Recorded(Protocol):
    """An objective whose pass through the model can be recorded in a ledger."""

    def measure(self, model: Any, batch: Any, ledger: Ledger | None = None) -> Mapping[str, Loss]: ...


@dataclass(frozen=True)
class WithExpertLosses:
    """The loss of `task`, plus for every counted token both losses of every layer of experts, each times its weight."""

    task: Recorded
    balance: float = 0.01  # α of [fedus2022 eq.4]
    router_z: float = 0.001  # c_z of [zoph2022 eq.6]

    def __post_init__(self) -> None:
        if min(self.balance, self.router_z) < 0:
            raise QkvError("The weights of the losses of experts must be 0 or more.")
        if "ledger" not in inspect.signature(self.task.measure).parameters:
            kind = type(self.task).__name__
            raise QkvError(f"Experts cannot be trained by {kind}, which records no pass: take one that does.")

    @property
    def counts(self) -> str:
        """What the task counts."""
        return getattr(self.task, "counts", "tokens")

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        ledger = Ledger(model, [TALLY])
        loss = self.task.measure(model, batch, ledger)["loss"]
        sums = _of_layers(ledger)
        return replace(self._with_theirs(loss, sums), beside=_used(sums))

    def measure(self, model: nn.Module, batch: Any) -> dict[str, Loss]:
        """All that the task measures, with the losses of experts in its loss, and how experts were used.

        Of the latter the mean over layers: `balance` is 1 where all experts are used alike, `busiest_expert` is the
        share of tokens that went to the expert with the most, `dropped` the share that found theirs full.
        """
        ledger = Ledger(model, [TALLY])
        measured = dict(self.task.measure(model, batch, ledger))
        sums = _of_layers(ledger)
        loss = self._with_theirs(measured["loss"], sums)
        return {
            **measured,
            "loss": loss,
            **{name: Loss(value * loss.count, loss.count) for name, value in _used(sums).items()},
        }

    def _with_theirs(self, loss: Loss, sums: Tally) -> Loss:
        beside = self.balance * balance_loss(sums) + self.router_z * z_loss(sums)  # [layers]
        return Loss(loss.total + loss.count * beside.sum(), loss.count)


def _used(sums: Tally) -> dict[str, Tensor]:
    """How experts were used, on average over their layers. [] each"""
    sums = Tally(sums.packed.detach())
    figures = {BALANCE: balance_loss, ROUTER_Z: z_loss, DROPPED: dropped}
    used = {name: figure(sums).mean() for name, figure in figures.items()}
    return {**used, "busiest_expert": loads(sums).amax(-1).mean()}


def _of_layers(ledger: Ledger) -> Tally:
    """What all layers of experts counted, which all have as many experts. [layers]"""
    written = [value for _, kind, value in ledger.written if kind == TALLY]
    if not written:
        raise QkvError(NO_EXPERTS)
    return Tally(torch.stack(written))


def with_expert_losses(model: nn.Module, objective: Any) -> Any:
    """The objective for this model: where it has experts, theirs stand beside it with the weights of the papers."""
    has_experts = any(isinstance(module, Mixture) for module in model.modules())
    if isinstance(objective, WithExpertLosses) and not has_experts:
        raise QkvError(NO_EXPERTS)
    return WithExpertLosses(objective) if has_experts and not isinstance(objective, WithExpertLosses) else objective
