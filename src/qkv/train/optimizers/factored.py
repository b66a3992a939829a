"""Adafactor: of the squares of a matrix's gradients only the means of rows and of columns are kept. [shazeer2018]"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.train.optimizers.groups import DecayRule, RateRule, decay_groups, decay_matrices, rate_groups
from qkv.train.optimizers.own import OwnOptimizer, alike, check_rates, decay, stacked


class Adafactor(OwnOptimizer):
    """Steps are relative to a parameter's size, clipped by their own, and have no momentum. [shazeer2018 alg.4, alg.5]

    The rate is the paper's ρ: what a step is beside the parameter's root mean square. What has more than two dimensions
    is factored over the last two.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        decay_power: float = 0.8,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        check_rates("Adafactor", lr=lr, weight_decay=weight_decay)
        defaults = {"lr": lr, "decay_power": decay_power, "eps": eps, "clip": clip, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        states = self.states(parameters, _new_state)
        keys = [(each.shape, state["step"]) for each, state in zip(parameters, states, strict=True)]
        for numbers in alike(keys, [each.numel() for each in parameters]):
            some = [states[number] for number in numbers]
            own = [parameters[number] for number in numbers]
            updates = self._updates(group, stacked([gradients[number] for number in numbers]), some)
            size = _mean_square(stacked(own)).sqrt_().clamp_(min=group["eps"][1])
            updates.mul_(size * group["lr"])  # α = max(ε₂, RMS(X)) ρ
            decay(own, group["lr"] * group["weight_decay"])
            torch._foreach_sub_(own, list(updates.unbind()))

    def _updates(self, group: dict[str, Any], gradients: Tensor, states: list[dict[str, Any]]) -> Tensor:
        """Of parameters of one shape and age, before they are scaled. [n …]"""
        new = states[0]["step"] ** -group["decay_power"]  # 1 - β̂₂, which is 1 at the first step [shazeer2018 alg.6]
        squares = gradients.square().add_(group["eps"][0])
        if "square" in states[0]:
            updates = gradients / _kept(states, "square", squares, new).sqrt()
        else:
            rows = _kept(states, "rows", squares.mean(-1), new)  # [n … r]
            columns = _kept(states, "columns", squares.mean(-2), new)  # [n … c]
            rows = rows / rows.mean(-1, keepdim=True)  # R C / 1ᵀR, in means where the paper has sums
            updates = gradients * rows.rsqrt()[..., None] * columns.rsqrt()[..., None, :]
        return updates.div_((_mean_square(updates).sqrt_() / group["clip"]).clamp_(min=1.0))


def adafactor(
    model: nn.Module,
    *,
    learning_rate: float = 1e-2,
    weight_decay: float = 0.0,
    decays: DecayRule = decay_matrices,
    rates: RateRule | None = None,
) -> Adafactor:
    """Adafactor with its paper's numbers: for memory, of which a matrix of r × c takes r + c numbers and no more.

    The paper's schedule is min(10⁻², 1/√t): a rate that stays for ten thousand steps. It has no decay.
    """
    groups = decay_groups(model, weight_decay, decays)
    if rates is not None:
        groups = rate_groups(model, groups, learning_rate, rates)
    return Adafactor(groups, lr=learning_rate)


def _new_state(parameter: Tensor) -> dict[str, Any]:
    if parameter.ndim < 2:
        return {"square": torch.zeros_like(parameter)}
    *others, _, width = parameter.shape
    return {"rows": parameter.new_zeros(parameter.shape[:-1]), "columns": parameter.new_zeros((*others, width))}


def _kept(states: list[dict[str, Any]], name: str, now: Tensor, new: float) -> Tensor:
    """The moving mean of all states with what is new, which they hold from now on."""
    kept = stacked([state[name] for state in states]).lerp_(now, new)
    torch._foreach_copy_([state[name] for state in states], list(kept.unbind()))
    return kept


def _mean_square(many: Tensor) -> Tensor:
    """Of each parameter by itself, in a form that can be multiplied with all of them. [n …] → [n 1 …]"""
    means = many.flatten(1).square().mean(1) if many.ndim > 1 else many.square()
    return means.view(-1, *[1] * (many.ndim - 1))
