"""A model made ready to decode on a CPU: its matrices packed for products with few rows.

A decoding step multiplies a few rows (one a beam) with every matrix of the model. With four to sixteen rows the product
is up to three times faster when the matrix was put beforehand into the order that oneDNN reads it in.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.parts.context import Context
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.linear import JoinedLinear

ROWS = 64  # the number of rows packed for; the arrangement it gives serves fewer and more as well
FEW = 2  # up to so many rows the plain product is as fast, and called more quickly
SMALL = 2**19  # so are products with matrices of fewer numbers


class PackedLinear(nn.Module):
    """(scale · x) Wᵀ + b with W in the order in which the product reads it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        if self.scale != 1.0:
            x = x * self.scale
        if x.numel() <= FEW * x.shape[-1]:
            return F.linear(x, self.weight, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


class PackedJoinedLinear(nn.Module):
    """The same for several maps of one input."""

    def __init__(self, joined: JoinedLinear) -> None:
        super().__init__()
        self.together = PackedLinear(joined.weight, joined.bias)
        self.sizes = list(joined.outputs.values())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.together(x).split(self.sizes, -1)


def can_prepare(model: nn.Module) -> bool:
    """Whether packing is known here: on a CPU with oneDNN, for single and bfloat16 precision."""
    weight = next(model.parameters())
    known = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return known and weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)


@torch.no_grad()
def prepare(model: SequenceToSequence) -> SequenceToSequence:
    """The model with its large matrices packed, for decoding only, and only until its weights change.

    The weights themselves are shared, not copied. Where packing is not known, the model itself.
    """
    if not can_prepare(model):
        return model
    shared: dict[int, Any] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    ready = deepcopy(model, shared).eval()
    for name, module in list(ready.named_modules()):
        if (packed := _packed(module)) is not None:
            parent, _, child = name.rpartition(".")
            setattr(ready.get_submodule(parent), child, packed)
    return ready


def _packed(module: nn.Module) -> nn.Module | None:
    """What takes the place of a module, where anything does."""
    if isinstance(module, nn.Dropout):
        return nn.Identity()  # what it does in evaluation, without asking each time
    if isinstance(module, JoinedLinear) and module.weight.numel() >= SMALL:
        return PackedJoinedLinear(module)
    if isinstance(module, TiedHead | LogitHead) and module.weight.numel() >= SMALL:
        return PackedLinear(module.weight, module.bias, module.scale)
    if isinstance(module, nn.Linear) and module.weight.numel() >= SMALL:
        return PackedLinear(module.weight, module.bias)
    return None
