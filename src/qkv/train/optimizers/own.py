"""What our own optimizers share: state that a checkpoint gives back to the bit, and steps over many tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError

MOST_AT_ONCE = 2**24  # numbers that are put side by side for one pass: what a step needs beside the state stays bounded


class OwnOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer whose state is tensors of any type, and counters that are whole numbers.

    It has no kernel of its own on the device: a step that must be skipped is one that the host does not take.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self.update(group, parameters, [parameter.grad for parameter in parameters])
        return loss

    @abstractmethod
    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """One update of those parameters of a group that have gradients."""

    def states(self, parameters: Sequence[Tensor], new: Callable[[Tensor], dict[str, Any]]) -> list[dict[str, Any]]:
        """The state of each parameter, made where there is none, with its counter one higher than before."""
        found = []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state.update({"step": 0, **new(parameter)})
            state["step"] += 1
            found.append(state)
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As it was saved: torch would make whatever is a tensor a tensor of the parameter's own type."""
        super().load_state_dict(state_dict)
        for packed, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for number, parameter in zip(packed["params"], group["params"], strict=True):
                for key, value in state_dict["state"].get(number, {}).items():
                    self.state[parameter][key] = (
                        int(value) if key == "step" else value.detach().to(parameter.device, copy=True)
                    )


def adam_step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    states: list[dict[str, Any]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """AdamW on all parameters at once, for those that an optimizer treats no other way. [loshchilov2019 alg.2]"""
    firsts, seconds = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
    torch._foreach_lerp_(firsts, gradients, 1 - betas[0])
    torch._foreach_mul_(seconds, betas[1])
    torch._foreach_addcmul_(seconds, gradients, gradients, 1 - betas[1])
    decay(parameters, lr * weight_decay)
    roots = torch._foreach_sqrt(seconds)
    torch._foreach_div_(roots, [math.sqrt(1 - betas[1] ** state["step"]) for state in states])
    torch._foreach_add_(roots, eps)
    torch._foreach_addcdiv_(parameters, firsts, roots, [-lr / (1 - betas[0] ** state["step"]) for state in states])


def adam_state(parameter: Tensor) -> dict[str, Any]:
    return {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


def decay(parameters: list[Tensor], share: float) -> None:
    """Take a share from the weights themselves, and not by way of the gradient."""
    if share:
        torch._foreach_mul_(parameters, 1 - share)


def alike(keys: Sequence[Hashable], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of the things that share a key, as many at a time as are at most `MOST_AT_ONCE` numbers together."""
    found: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        found.setdefault(key, []).append(number)
    for numbers in found.values():
        some: list[int] = []
        total = 0
        for number in numbers:
            if some and total + sizes[number] > MOST_AT_ONCE:
                yield some
                some, total = [], 0
            some.append(number)
            total += sizes[number]
        yield some


def stacked(tensors: list[Tensor]) -> Tensor:
    """Side by side in one tensor, which is a view where there is only one. [n …]"""
    return torch.stack(tensors) if len(tensors) > 1 else tensors[0][None]


def check_rates(optimizer: str, **shares: float) -> None:
    """Numbers that would make no update, or an ever larger one."""
    for name, value in shares.items():
        if name in ("lr", "eps", "weight_decay"):
            if not 0 <= value < math.inf:
                raise QkvError(f"{optimizer} needs a {name} of 0 or more that is finite, but got {value}.")
        elif not 0 <= value < 1:
            raise QkvError(f"{optimizer} needs a {name} from 0 to below 1, but got {value}.")
