"""How one part is divided among tensor ranks: what torch's own styles do for plain linear maps, for ours.

A divided part computes with its rank's own numbers. Its parameters are DTensors, so that those who shard, save or count
them know of the whole ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from qkv.parts.attention.visibility import Tokens
from qkv.parts.linear import JoinedLinear
from qkv.parts.position import ALiBi, RelativeBuckets


class JoinedColumns(ParallelStyle):
    """Each of several joined maps is divided by its outputs, and a rank's rows of all of them stand together."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert type(module) is JoinedLinear
        rank, ranks = device_mesh.get_local_rank(), device_mesh.size()
        for name, rows in (("weight", module.outputs), ("bias", module.biases)):
            whole: nn.Parameter | None = getattr(module, name)
            if whole is not None:
                parts = whole.detach().split(list(rows.values()))
                own = torch.cat([part.chunk(ranks)[rank] for part in parts])
                divided = DTensor.from_local(own, device_mesh, [Shard(0)], run_check=False)
                module.register_parameter(name, nn.Parameter(divided, requires_grad=whole.requires_grad))
        module.outputs = {name: rows // ranks for name, rows in module.outputs.items()}
        module.biases = {name: rows // ranks for name, rows in module.biases.items()}
        return _become(module, DividedJoinedLinear, device_mesh)


class BiasOfHeads(ParallelStyle):
    """A bias on scores keeps what belongs to its rank's heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if type(module) is ALiBi:
            return _become(module, DividedALiBi, device_mesh)
        assert type(module) is RelativeBuckets
        divided = distribute_tensor(module.weight.detach(), device_mesh, [Shard(1)], src_data_rank=self.src_data_rank)
        module.register_parameter("weight", nn.Parameter(divided, requires_grad=module.weight.requires_grad))
        return _become(module, DividedBuckets, device_mesh)


class DividedJoinedLinear(JoinedLinear):
    """A rank's rows of each map: whole inputs in, the rank's own heads or hidden units out.

    `outputs` and `biases` count the rank's own rows. In the whole matrix those of the first rank stand first, its own
    of each map in the maps' order.
    """

    depends_on = JoinedLinear.depends_on.also("mesh")

    mesh: DeviceMesh

    def matrix(self) -> Tensor:
        return _own(self.weight)

    def own_bias(self) -> Tensor | None:
        return None if self.bias is None else _own(self.bias)

    def together(self, x: Tensor) -> Tensor:
        return super().together(summed_back(x, self.mesh))

    def with_last_of(self, x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return super().with_last_of(summed_back(x, self.mesh), summed_back(other, self.mesh))

    def stretches(self) -> list[tuple[str, int, int]]:
        ranks = range(self.mesh.size())
        return [(name, rank * rows, rows) for rank in ranks for name, rows in self.outputs.items()]


class DividedBuckets(RelativeBuckets):
    """The biases of a rank's own heads."""

    depends_on = RelativeBuckets.depends_on.also("mesh")

    mesh: DeviceMesh

    def table(self) -> Tensor:
        return _own(self.weight)


class DividedALiBi(ALiBi):
    """The slopes of a rank's own heads; nothing is learned of them, so that all are kept."""

    depends_on = ALiBi.depends_on.also("mesh")

    mesh: DeviceMesh

    def forward(self, query: Tokens, key: Tokens) -> Tensor:
        return super().forward(query, key).chunk(self.mesh.size(), 1)[self.mesh.get_local_rank()]


def summed_back(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """x as it is, whose gradient is the sum of what all ranks find: the paper's operator f. [shoeybi2019 §3]"""
    shared = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return shared.to_local(grad_placements=[Partial()])


def _become(
    module: nn.Module, kind: type[DividedJoinedLinear | DividedBuckets | DividedALiBi], mesh: DeviceMesh
) -> nn.Module:
    """The module itself, of another class: who holds it need not know."""
    module.__class__ = kind
    module.mesh = mesh  # type: ignore[assignment]
    return module


def _own(parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local()
