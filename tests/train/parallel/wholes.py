"""What ranks hold in parts, put together again, to be compared with what one process has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from qkv.parts.linear import JoinedLinear


def whole_tensors(model: nn.Module, *, gradients: bool = False) -> dict[str, Tensor]:
    """Every parameter (or its gradient) by its name, joined maps one after the other; all ranks must ask."""
    owners, found = dict(model.named_modules()), {}
    for name, parameter in model.named_parameters():
        tensor = parameter.grad if gradients else parameter.detach()
        if tensor is None:
            continue
        tensor = whole(tensor)
        path, _, own = name.rpartition(".")
        if isinstance(joined := owners[path], JoinedLinear):
            tensor = _in_order(joined, tensor, joined.outputs if own == "weight" else joined.biases)
        found[name] = tensor
    return found


def whole(tensor: Tensor) -> Tensor:
    """A tensor as all ranks together have it; one way of the mesh after the other, of which torch does not warn."""
    if not isinstance(tensor, DTensor):
        return tensor
    for way in range(tensor.device_mesh.ndim):
        placements = [*tensor.placements]
        placements[way] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def _in_order(joined: JoinedLinear, rows: Tensor, names: dict[str, int]) -> Tensor:
    """The rows of one map after the other, each from its first to its last."""
    stretches = [stretch for stretch in joined.stretches() if stretch[0] in names]
    pieces = rows.split([count for *_, count in stretches])
    assert sum(count for *_, count in stretches) == len(rows)
    order = sorted(range(len(pieces)), key=lambda i: (list(names).index(stretches[i][0]), stretches[i][1]))
    return torch.cat([pieces[i] for i in order])
