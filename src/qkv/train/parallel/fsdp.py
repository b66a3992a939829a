"""Parameters in parts: each rank keeps some of every block, which is whole only while it is used. [zhao2023 §3]"""

from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from qkv.parts.block import Block
from qkv.parts.linear import JoinedLinear

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


@torch.no_grad()
def gather(model: nn.Module, twin: nn.Module, keep: bool) -> None:
    """Fill the twin of a sharded model, one parameter at a time; all ranks take part, and those that `keep` have it."""
    owners = dict(model.named_modules())
    for (name, parameter), whole in zip(model.named_parameters(), twin.parameters(), strict=True):
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if keep:
            owner = owners[name.rpartition(".")[0]]
            whole.copy_(_in_order(owner, name, full) if isinstance(owner, JoinedLinear) else full)
    if keep:
        for mine, theirs in zip(twin.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)


def _in_order(owner: JoinedLinear, name: str, joined: Tensor) -> Tensor:
    """The rows of joined maps, one map after the other, however ranks had them. [rows …]"""
    named = list(owner.outputs if name.endswith("weight") else owner.biases)
    stretches = [stretch for stretch in owner.stretches() if stretch[0] in named]
    rows = joined.split([count for _, _, count in stretches])
    places = [(named.index(part), first) for part, first, _ in stretches]
    return torch.cat([rows[number] for number in sorted(range(len(rows)), key=places.__getitem__)])
