"""Lion: every weight moves by the same amount, in the direction of the sign of its momentum. [chen2023b]"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.train.optimizers.groups import DecayRule, RateRule, decay_groups, decay_matrices, rate_groups
from qkv.train.optimizers.own import OwnOptimizer, check_rates, decay


class Lion(OwnOptimizer):
    """One momentum for each weight, half the state of Adam. [chen2023b alg.2]"""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        check_rates("Lion", lr=lr, weight_decay=weight_decay, **{"first beta": betas[0], "second beta": betas[1]})
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        lr, (near, far) = group["lr"], group["betas"]
        states = self.states(parameters, lambda parameter: {"momentum": torch.zeros_like(parameter)})
        momenta = [state["momentum"] for state in states]
        directions = torch._foreach_lerp(momenta, gradients, 1 - near)  # c = β₁ m + (1 - β₁) g
        torch._foreach_sign_(directions)
        torch._foreach_lerp_(momenta, gradients, 1 - far)  # m = β₂ m + (1 - β₂) g
        decay(parameters, lr * group["weight_decay"])
        torch._foreach_add_(parameters, directions, alpha=-lr)  # θ = θ - η (sign(c) + λ θ)


def lion(
    model: nn.Module,
    *,
    learning_rate: float = 1e-4,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.99),
    decays: DecayRule = decay_matrices,
    rates: RateRule | None = None,
) -> Lion:
    """Lion with its paper's betas.

    A weight moves by the whole rate each time, so that it wants a rate 3 to 10 times below AdamW's, and as many times
    more decay. [chen2023b §5]
    """
    groups = decay_groups(model, weight_decay, decays)
    if rates is not None:
        groups = rate_groups(model, groups, learning_rate, rates)
    return Lion(groups, lr=learning_rate, betas=betas)
