"""Parameters in parts: each rank keeps some of every block, which is whole only while it is used. [zhao2023 §3]"""

from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from qkv.parts.block import Block

Answer = TypeVar("Answer")


class Sharded(nn.Module):
    """Around a model: work done within `forward` finds whole what belongs to no block (embeddings, norms, heads).

    An objective calls of a model what it needs, its states, its head; so it is the objective's work, and not the
    model's `forward`, before and after which parameters are gathered and forgotten.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Answer]) -> Answer:
        """What work gives: tensors that a loss is made of must be among what it returns, alone or in a tuple."""
        return work()


def shard(model: nn.Module, mesh: DeviceMesh) -> Sharded:
    """Leave this rank its part of each parameter. Gradients become sums over the ranks of the mesh, not means."""
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    whole = Sharded(model)
    fully_shard(whole, mesh=mesh)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return whole


def twin_of(model: nn.Module) -> nn.Module:
    """An ordinary model of the same make in the memory of the host, its parameters not yet filled in."""
    memory: dict[int, nn.Parameter] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="cpu"), parameter.requires_grad)
        for parameter in model.parameters()
    }
    twin: nn.Module = deepcopy(model, memory)  # what shares a parameter shares it here, too
    return twin.cpu()
