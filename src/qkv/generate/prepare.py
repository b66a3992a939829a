"""A model made ready to decode on a CPU: its matrices packed for products with few rows.

A decoding step multiplies a few rows (one a beam) with every matrix of the model, and is quickest when each was put
beforehand into the order that it is read in: by our own program where there is a compiler for it, by oneDNN elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.generate.bound import disagreement_of_stacks
from qkv.generate.known import MAPS, STACK, STEPS
from qkv.generate.residual_steps import residual_step, steps_of_stack
from qkv.generate.straight import straight
from qkv.parts.agreement import say_refused
from qkv.parts.context import Context
from qkv.parts.cpu_maps import SMALL, by_onednn, onednn_takes
from qkv.parts.cpu_panels import kept_map, signs_of_change
from qkv.parts.cpu_steps import fits, map_rows, most_rows
from qkv.parts.divided import is_divided
from qkv.parts.linear import JoinedLinear
from qkv.parts.modes import answering
from qkv.parts.spec import Unchanged
from qkv.parts.stack import Stack

ROWS = 64  # the number of rows packed for; the arrangement it gives serves fewer and more as well
AT_LEAST = 4  # rows: the product of fewer reads the matrix more slowly

Decodes = TypeVar("Decodes", bound=nn.Module)


class PackedLinear(nn.Module):
    """(scale · x) Wᵀ + b with W in the order in which our own program reads it, for few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.map = kept_map(weight, bias)
        self._most = most_rows(weight.dtype) * weight.shape[1]
        self._otherwise = by_onednn if onednn_takes(weight.dtype) else F.linear

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        known = x.dtype == self.weight.dtype and x.numel() > 0
        if known and x.numel() <= self._most:
            return map_rows(self.map, x, self.scale)
        x = x if self.scale == 1.0 else x * self.scale
        return (self._otherwise if known else F.linear)(x, self.weight, self.bias)


class ReorderedLinear(nn.Module):
    """The same where there is no compiler for that program: W in the order in which oneDNN reads it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        if self.scale != 1.0:
            x = x * self.scale
        rows = x.numel() // x.shape[-1]
        if rows >= AT_LEAST:
            return by_onednn(x, self.packed, self.bias)
        enough = F.pad(x.reshape(rows, -1), (0, 0, 0, AT_LEAST - rows))
        return by_onednn(enough, self.packed, self.bias)[:rows].view(*x.shape[:-1], -1)


class PackedJoinedLinear(nn.Module):
    """The same for several maps of one input."""

    def __init__(self, joined: JoinedLinear) -> None:
        super().__init__()
        self.together = packed_map(joined.weight, joined.whole_bias())
        self.sizes = list(joined.outputs.values())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.together(x).split(self.sizes, -1)


def can_pack(weight: Tensor) -> bool:
    """Whether `packed_map` knows a matrix."""
    return fits(weight, weight.dtype) or onednn_takes(weight.dtype)


def packed_map(weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> nn.Module:
    """The map by what is the quickest here."""
    return (PackedLinear if fits(weight, weight.dtype) else ReorderedLinear)(weight, bias, scale)


def can_prepare(model: nn.Module) -> bool:
    """Whether a model may be packed: on a CPU, in single precision or bfloat16."""
    weight = next(model.parameters())
    return weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)


@torch.no_grad()
def prepare(model: Decodes) -> Decodes:
    """The model with its large matrices packed, for decoding only, and only until its weights change.

    The weights themselves are shared, not copied. Where packing is not known, the model itself.
    """
    if not can_prepare(model):
        return model
    shared: dict[int, Any] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    ready = deepcopy(model, shared).eval()
    for name, module in reversed(list(ready.named_modules())):  # a part's own parts come before it
        packed = _replaced(module, model.get_submodule(name))
        if packed is not None:
            parent, _, child = name.rpartition(".")
            setattr(ready.get_submodule(parent), child, packed)
    for name, stack in model.named_modules():
        if type(stack) is Stack and (why := disagreement_of_stacks(stack, ready.get_submodule(name))) is not None:
            say_refused("Decoding by packed matrices", f"of {name or 'the stack'}, {why}")
            return model
    return ready


def _replaced(module: nn.Module, own: nn.Module) -> nn.Module | None:
    """What takes the place of a module, where anything does: of one whose own parts, as they are, are all known."""
    if MAPS.refusal(own) is None:
        return _packed(module)
    if STEPS.refusal(own) is None and (step := residual_step(module, straight)) is not None:
        return step
    if STACK.refusal(own) is None and (steps := steps_of_stack(module)) is not None:
        return steps
    return straight(module)


def _packed(module: nn.Module) -> nn.Module | None:
    if isinstance(module, nn.Dropout):
        return nn.Identity()  # what it does in evaluation, without asking each time
    linear: Any = module
    if not _pays(linear.weight):
        return None
    if isinstance(module, JoinedLinear):
        return PackedJoinedLinear(module)
    return packed_map(linear.weight, linear.bias, getattr(linear, "scale", 1.0))


def _pays(weight: Tensor) -> bool:
    return weight.numel() >= SMALL and can_pack(weight)


class Ready(Generic[Decodes]):
    """A model kept ready to decode: without dropout, packed where that helps."""

    def __init__(self) -> None:
        self._packed: tuple[list[object], Unchanged, Decodes] | None = None

    @contextmanager
    def decoding(self, model: Decodes) -> Iterator[Decodes]:
        """The model to decode with: packed anew only after its weights or parts have changed, and not where ranks have
        parts of it."""
        ready = model
        with answering(model):  # prepare gives the model itself where it cannot pack
            if can_prepare(model) and not any(is_divided(weight) for weight in model.parameters()):
                weights: list[object] = [(id(weight), signs_of_change(weight)) for weight in model.parameters()]
                if self._packed is None or self._packed[0] != weights or not self._packed[1].holds():
                    self._packed = (weights, Unchanged(model.children()), prepare(model))
                ready = self._packed[2]
            yield ready
