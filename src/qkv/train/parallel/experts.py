"""Experts on several ranks: each keeps some of them, and tokens travel to their experts and back. [lepikhin2021 §3.2]

All else of a model is as with any data parallel training: ranks see rows of their own, and routers are the same on all.

Shapes: r ranks, e experts, l = e/r of them on each rank, n rows, d width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from qkv.errors import QkvError
from qkv.parts.experts import Mixture, by_expert
from qkv.parts.grouped import EvenGroups, GroupedLinear, Groups, grouped_product
from qkv.parts.routing import Routing, Tally
from qkv.train.parallel.exchange import Group, Trip, added_up

# The ways of a mesh of experts: ranks with the same experts, with different ones, and with the same tokens.
REPLICAS, EXPERTS, TENSOR = "replicas", "experts", "tensor"


def expert_mesh(rows: DeviceMesh, expert: int) -> DeviceMesh:
    """The ranks of `rows` [data context tensor] as [replicas experts tensor].

    `expert` ranks whose numbers follow each other among those of data, and so mostly on one machine, keep different
    experts. All ranks must ask for it.
    """
    data, context, tensor = rows.mesh.shape
    if data % expert:
        raise QkvError(f"Experts on {expert} ranks need a multiple of as many that see rows of their own, not {data}.")
    ranks = rows.mesh.view(data // expert, expert, context, tensor).transpose(1, 2).reshape(-1, expert, tensor)
    return DeviceMesh(rows.device_type, ranks, mesh_dim_names=(REPLICAS, EXPERTS, TENSOR))


def divide_experts(model: nn.Module, mesh: DeviceMesh, precision: MixedPrecisionPolicy | None = None) -> None:
    """Leave this rank its experts, of a model that is the same on all ranks of the mesh that `expert_mesh` made.

    The replicas of an expert keep a part of it each. Its gradient becomes the sum over all ranks' tokens.
    """
    mixtures = [module for module in model.modules() if isinstance(module, Mixture)]
    if not mixtures:
        raise QkvError("This model has no experts to be divided: leave out expert, or choose a model that has some.")
    ranks = mesh[EXPERTS].size()
    for mixture in mixtures:
        if mixture.router.experts % ranks:
            raise QkvError(
                f"{mixture.router.experts} experts cannot be divided evenly among {ranks} ranks: choose a number for "
                "expert that divides them."
            )
    bounded = any(mixture.router.capacity is not None for mixture in mixtures)
    hosts = _host_group(mesh) if bounded else None
    for mixture in mixtures:
        mixture.grouping = Travel(mesh[EXPERTS].get_group(), None if mixture.router.capacity is None else hosts)
        _keep_some(mixture, mesh, precision or MixedPrecisionPolicy())


def share_balance(model: nn.Module, group: Group) -> OverRanks:
    """Have every layer of experts figure balance, loads and all else over the tokens of all ranks of the group.

    For the balance of all tokens is not the mean of the ranks' balances. A model without experts stays as it is.
    """
    over = OverRanks(group)
    for module in model.modules():
        if isinstance(module, Mixture):
            module.over_all = over
    return over


class OverRanks:
    """Adds up what ranks tallied. `silent`: this rank's tokens stand in for none, and count nothing."""

    def __init__(self, group: Group) -> None:
        self.group, self.silent = group, False

    def __call__(self, sums: Tally) -> Tally:
        packed = (
            sums.packed * 0 if self.silent else sums.packed
        )  # which takes part in the others' gradients all the same
        return Tally(added_up(packed, self.group))


class Travel:
    """How the tokens of a pass come to experts on other ranks, and back."""

    def __init__(self, group: Group, hosts: Group | None) -> None:
        """The ranks with the other experts, and those as hosts, which ask each other what devices need not say."""
        self.group, self.hosts = group, hosts

    @torch.compiler.disable
    def __call__(self, routing: Routing) -> Groups | EvenGroups:
        """All ranks take the same way, for which all must know how many rows come from whom.

        Where all have places of their own, hosts know that without their devices. Elsewhere the devices count, and the
        host waits for them, once for each layer.
        """
        own = by_expert(routing)
        if self.hosts is not None:
            places = self._told(own.places if isinstance(own, EvenGroups) else -1, self.hosts)
            if isinstance(own, EvenGroups) and min(places) >= 0:
                return EvenTravellers(own, places, self.group)
        if isinstance(own, EvenGroups):
            own = Groups(routing.experts.flatten(), own.groups)
        return Travellers(own, self.group)

    @staticmethod
    def _told(number: int, hosts: Group) -> list[int]:
        """The numbers of all ranks. [r]"""
        told = torch.zeros(hosts.size(), dtype=torch.long)
        told[hosts.rank()] = number
        dist.all_reduce(told, group=hosts)
        return told.tolist()


class Travellers(Groups):
    """Rows of all ranks, sorted by this rank's experts."""

    def __init__(self, own: Groups, group: Group) -> None:
        ranks = group.size()
        counts = own.ends.long().diff(prepend=own.ends.new_zeros(1))  # [e] of own rows
        here = torch.empty_like(counts)  # [r·l] rows of each rank for each expert of this one
        dist.all_to_all_single(here, counts, group=group)
        leave, arrive = torch.stack((counts, here)).unflatten(1, (ranks, -1)).sum(-1).tolist()  # here the host waits
        experts = torch.arange(own.groups // ranks, device=here.device).repeat(ranks)  # [r·l]
        super().__init__(experts.repeat_interleave(here, output_size=sum(arrive)), own.groups // ranks)
        self.own, self.trip = own, Trip(leave, arrive, group)

    def sort(self, x: Tensor, copies: int = 1) -> Tensor:
        return super().sort(self.trip.there(self.own.sort(x, copies)))

    def restore(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.own.restore(self.trip.back(super().restore(x)), weights)


class EvenTravellers(EvenGroups):
    """Rows of all ranks in their places with this rank's experts, of which each rank has its own."""

    def __init__(self, own: EvenGroups, places: Sequence[int], group: Group) -> None:
        """places: of each rank with any one expert."""
        ranks, total = len(places), sum(places)
        here = own.groups // ranks
        first = torch.arange(here, device=own.place.device)[:, None] * total  # [l 1] where the places of each begin
        every = torch.arange(total, device=own.place.device)
        place = torch.cat([(first + mine).flatten() for mine in every.split(list(places))])  # [l·total]
        super().__init__(place, here, total)
        self.own, self.trip = own, Trip([here * own.places] * ranks, [here * each for each in places], group)

    def sort(self, x: Tensor, copies: int = 1) -> Tensor:
        return super().sort(self.trip.there(self.own.sort(x, copies)))

    def restore(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.own.restore(self.trip.back(super().restore(x)), weights)


class HeldExperts(GroupedLinear):
    """Linear maps of all experts, of which this rank has some."""

    depends_on = GroupedLinear.depends_on

    def forward(self, x: Tensor, groups: Groups | EvenGroups) -> Tensor:
        """Sorted rows of this rank's experts. [n inputs] → [n outputs]"""
        assert isinstance(self.weight, DTensor)
        return grouped_product(x, self.weight.to_local(), groups)


def _keep_some(mixture: Mixture, mesh: DeviceMesh, precision: MixedPrecisionPolicy) -> None:
    linears: list[nn.Module] = []
    for linear in [module for module in mixture.modules() if isinstance(module, GroupedLinear)]:
        weight = linear.weight
        part = distribute_tensor(weight.detach(), mesh[EXPERTS], [Shard(0)], src_data_rank=None)
        linear.weight = nn.Parameter(part, weight.requires_grad)
        linear.__class__ = HeldExperts
        linears.append(linear)
    replicas = mesh[REPLICAS]

    def way(weight: nn.Parameter) -> Shard:
        """Along a width where it divides: the experts of a rank are few."""
        return next((Shard(at) for at in (1, 2) if weight.shape[at] % replicas.size() == 0), Shard(0))

    # With one replica, too: so whoever shards what is around them finds them taken.
    fully_shard(linears, mesh=replicas, shard_placement_fn=way, mp_policy=precision)
    first = linears[0]
    assert isinstance(first, FSDPModule)
    first.set_gradient_divide_factor(1.0)
    first.set_force_sum_reduction_for_comms(True)  # gloo knows no other


def _host_group(mesh: DeviceMesh) -> Group:
    """The ranks with the other experts, to be asked by the host while devices work."""
    ranks = mesh.mesh.transpose(1, 2).flatten(0, 1)  # [replicas·tensor experts]
    mine, _ = dist.new_subgroups_by_enumeration(ranks.tolist(), backend="gloo")
    assert mine is not None
    return mine
