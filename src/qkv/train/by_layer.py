"""Norms of gradients and of updates, layer by layer: which layers learn, and how much at a time. [liu2020 §3]"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.stack import Stack


def stacks_of(model: nn.Module) -> dict[str, Stack]:
    """The stacks of a model by their names in it: `encoder` and `decoder`, or `stack`."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, Stack)}
    if not found:
        raise QkvError(f"A {type(model).__name__} has no stack of blocks, so nothing of it can be told layer by layer.")
    return found


def gradient_norms(model: nn.Module) -> dict[str, list[Tensor]]:
    """Of each block of each stack, the norm of the gradient of all its parameters; 0 where it has none."""
    return {
        name: [_norm([one.grad for one in block.parameters() if one.grad is not None]) for block in stack.blocks]
        for name, stack in stacks_of(model).items()
    }


class LayerWatch:
    """Watches one update: `gradients` once they are there and nothing is clipped yet, `updates` after the step."""

    def __init__(self, model: nn.Module) -> None:
        self.stacks = stacks_of(model)
        self.model = model
        self._gradients: dict[str, list[Tensor]] = {}
        self._updates: dict[str, list[Tensor]] = {}
        self._before: dict[nn.Parameter, Tensor] = {}

    def gradients(self) -> None:
        self._gradients = gradient_norms(self.model)
        learned = [one for stack in self.stacks.values() for one in stack.blocks.parameters() if one.requires_grad]
        self._before = {one: one.detach().clone() for one in learned}

    def updates(self) -> None:
        """How far each block moved, as a share of where it stood: |W* - W| / |W|."""
        for name, stack in self.stacks.items():
            shares = []
            for block in stack.blocks:
                pairs = [(one.detach(), self._before[one]) for one in block.parameters() if one in self._before]
                moved = _norm([after - before for after, before in pairs])
                shares.append(moved / _norm([before for _, before in pairs]).clamp_min(1e-12))
            self._updates[name] = shares
        self._before = {}

    def record(self) -> dict[str, Any]:
        """What was seen, as plain numbers; None where one is not finite. Waits for the device."""
        return {"gradient_norms": _plain(self._gradients), "relative_updates": _plain(self._updates)}


def _norm(tensors: list[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)).float())


def _plain(figures: dict[str, list[Tensor]]) -> dict[str, list[float | None]]:
    numbers = {name: [float(each) for each in values] for name, values in figures.items()}
    return {name: [each if math.isfinite(each) else None for each in values] for name, values in numbers.items()}
