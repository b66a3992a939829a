"""What ranks hold in parts, put together again, to be compared with what one process has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from qkv.parts.linear import JoinedLinear


def whole_tensors(model: nn.Module, *, gradients: bool = False) -> dict[str, Tensor]:
    """Every parameter (or its gradient) by its name, joined maps one after the other; all ranks must ask."""
    owners, found = dict(model.named_modules()), {}
    for name, parameter in model.named_parameters():
        tensor = parameter.grad if gradients else parameter.detach()
        if tensor is None:
            continue
        if isinstance(tensor, DTensor):
            for way in range(tensor.device_mesh.ndim):  # one way after the other, of which torch does not warn
                placements = list(tensor.placements)
                placements[way] = torch.distributed.tensor.Replicate()
                tensor = tensor.redistribute(placements=placements)
            tensor = tensor.to_local()
        path, _, own = name.rpartition(".")
        if isinstance(joined := owners[path], JoinedLinear):
            tensor = _in_order(joined, tensor, joined.outputs if own == "weight" else joined.biases)
        found[name] = tensor
    return found


def _in_order(joined: JoinedLinear, rows: Tensor, names: dict[str, int]) -> Tensor:
    """The rows of one map after the other, each from its first to its last."""
    stretches = [stretch for stretch in joined.stretches() if stretch[0] in names]
    pieces = rows.split([count for *_, count in stretches])
    assert sum(count for *_, count in stretches) == len(rows)
    order = sorted(range(len(pieces)), key=lambda i: (list(names).index(stretches[i][0]), stretches[i][1]))
    return torch.cat([pieces[i] for i in order])
