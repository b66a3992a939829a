"""A model made ready to decode on a CPU: its matrices packed for products with few rows.

A decoding step multiplies a few rows (one a beam) with every matrix of the model. The plain product rearranges the
whole matrix each time before it can use it, which costs more than the product itself; here that is done once.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.parts.heads import TiedHead
from qkv.parts.linear import JoinedLinear

ROWS = 64  # the number of rows packed for; the arrangement it gives serves fewer and more as well


class PackedLinear(nn.Module):
    """x Wᵀ + b with W in the order in which the product reads it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.bias = None if bias is None else bias.detach().clone()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)

    def forward(self, x: Tensor) -> Tensor:
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
    """A copy of the model that decodes faster, and does nothing else: it neither trains nor saves.

    Where packing is not known, the model itself.
    """
    if not can_prepare(model):
        return model
    kinds = (nn.Linear, JoinedLinear, TiedHead)
    replaced = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    # What will be replaced stands in for its own copy, so that no matrix is copied before it is packed.
    kept: dict[int, Any] = {id(module): module for module in replaced.values()}
    ready = deepcopy(model, kept).eval()
    for name, module in replaced.items():
        parent, _, child = name.rpartition(".")
        setattr(ready.get_submodule(parent), child, _packed(module))
    return ready.requires_grad_(False)


def _packed(module: nn.Module) -> nn.Module:
    if isinstance(module, JoinedLinear):
        return PackedJoinedLinear(module)
    if isinstance(module, TiedHead):
        return PackedLinear(module._embedding[0].weight, module.bias)
    assert isinstance(module, nn.Linear)
    return PackedLinear(module.weight, module.bias)
