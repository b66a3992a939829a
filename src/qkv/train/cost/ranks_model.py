"""What one rank has of a model: the model without numbers, its matrices as small as the rank's own.

The parts that ranks divide are those of `qkv.train.parallel`; here they are made smaller in place of being handed out,
and note what they would say to other ranks.

Shapes: r ranks, b rows, s slots, d width.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from qkv.parts.attention.attention import MultiHead
from qkv.parts.block import Block
from qkv.parts.experts import Mixture
from qkv.parts.grouped import GroupedLinear
from qkv.parts.linear import JoinedLinear
from qkv.parts.position import ALiBi
from qkv.train.cost.ranks_experts import travelling
from qkv.train.cost.ranks_links import SUM, TENSOR_BACK, TENSOR_FORWARD
from qkv.train.cost.ranks_notes import Notes
from qkv.train.parallel.layout import Layout
from qkv.train.parallel.tensor import PLANS, count_own_heads, divided_parts, tables_of_heads
from qkv.train.parallel.tensor_styles import JoinedColumns

NOWHERE = torch.device("meta")


def part_of_rank(model: nn.Module, layout: Layout, notes: Notes) -> nn.Module:
    """A copy without numbers of what a rank holds before it is sharded: its heads, hidden units and experts."""
    memory: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        alike = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=NOWHERE)
        memory[id(tensor)] = nn.Parameter(alike, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else alike
        if tensor.grad is not None:
            memory[id(tensor.grad)] = None
    part: nn.Module = deepcopy(model, memory)
    if layout.expert > 1 or any(isinstance(module, Mixture) for module in part.modules()):
        travelling(part, layout, notes)
    if layout.tensor > 1:
        _divide_tensors(part, layout.tensor, notes)
    return part


def _divide_tensors(model: nn.Module, ranks: int, notes: Notes) -> None:
    divided = divided_parts(model, ranks)
    for module in divided:
        if isinstance(module, MultiHead):
            count_own_heads(module, ranks)
        for name, style in PLANS[type(module)].items():
            _divide_map(getattr(module, name), style, ranks, notes)
    for table in tables_of_heads(model):
        if isinstance(table, ALiBi):
            table.slopes = table.slopes[: len(table.slopes) // ranks]
        else:
            buckets, heads = table.weight.shape
            table.weight = _smaller(table.weight, buckets, heads // ranks)


def _divide_map(linear: nn.Module, style: ParallelStyle, ranks: int, notes: Notes) -> None:
    if isinstance(style, JoinedColumns):
        assert type(linear) is JoinedLinear
        linear.outputs = {name: rows // ranks for name, rows in linear.outputs.items()}
        linear.biases = {name: rows // ranks for name, rows in linear.biases.items()}
        linear.weight = _smaller(linear.weight, sum(linear.outputs.values()), linear.width)
        if linear.bias is not None:
            linear.bias = _smaller(linear.bias, sum(linear.biases.values()))
        linear.__class__ = _NotedJoined
        linear.notes, linear.ranks = notes, ranks  # type: ignore[assignment]
        return
    assert isinstance(linear, nn.Linear)
    if isinstance(style, ColwiseParallel):
        linear.out_features //= ranks
        if linear.bias is not None:
            linear.bias = _smaller(linear.bias, linear.out_features)
        linear.register_forward_pre_hook(lambda _, given: _note_columns(given[0], ranks, notes))
    else:
        assert isinstance(style, RowwiseParallel)
        linear.in_features //= ranks
        linear.register_forward_hook(lambda _, given, made: _note_rows(made, ranks, notes))
    linear.weight = _smaller(linear.weight, linear.out_features, linear.in_features)


def _note_columns(x: Tensor, ranks: int, notes: Notes) -> None:
    """Of the way back: the gradient of what goes into a map divided by its outputs is summed. [shoeybi2019 §3]"""
    if torch.is_grad_enabled():
        notes.on_the_way_back(TENSOR_BACK, SUM, ranks, 1, x)


def _note_rows(y: Tensor, ranks: int, notes: Notes) -> None:
    """What comes out of a map divided by its inputs is summed. [shoeybi2019 §3]"""
    notes.now((TENSOR_FORWARD, TENSOR_BACK), SUM, ranks, 1, y)


class _NotedJoined(JoinedLinear):
    """Joined maps of a rank, as `DividedJoinedLinear`, without numbers."""

    depends_on = JoinedLinear.depends_on.also("notes", "ranks")

    notes: Notes
    ranks: int

    def together(self, x: Tensor) -> Tensor:
        _note_columns(x, self.ranks, self.notes)
        return super().together(x)

    def with_last_of(self, x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        _note_columns(x, self.ranks, self.notes)
        _note_columns(other, self.ranks, self.notes)
        return super().with_last_of(x, other)


def _smaller(parameter: Tensor, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=parameter.dtype, device=NOWHERE), parameter.requires_grad)


@dataclass
class Unit:
    """Parameters that ranks gather, forget and sum together: a block, the experts of a layer, or all the rest."""

    module: nn.Module
    parameters: list[nn.Parameter]
    ranks: int  # that hold a part each
    apart: int
    replicas: int = 1  # groups of such ranks that hold the same
    stays: bool = False  # whole until the way back is over
    experts: bool = False
    ways: dict[int, int] = field(default_factory=dict)  # id of a parameter -> which dimension is cut; else the first

    def shares(self, rank: int = 0, learned: bool = False) -> list[torch.Size]:
        """What a rank holds of each parameter, and of its gradient."""
        own = rank % self.ranks
        return [self.share(each, own) for each in self.parameters if each.requires_grad or not learned]

    def share(self, parameter: nn.Parameter, own: int) -> torch.Size:
        way = self.ways.get(id(parameter), 0)
        shape = list(parameter.shape)
        each = -(-shape[way] // self.ranks)
        shape[way] = max(0, min(each, shape[way] - own * each))
        return torch.Size(shape)

    def held(self, learned: bool = False) -> int:
        """Bytes on every rank: torch fills up the last ones, so that all are as large as the first."""
        sizes = [parameter.element_size() for parameter in self.parameters if parameter.requires_grad or not learned]
        return sum(size * shape.numel() for size, shape in zip(sizes, self.shares(0, learned), strict=True))

    def whole(self, learned: bool = False) -> int:
        """Bytes when gathered, filling included."""
        return self.ranks * self.held(learned)


def units_of(part: nn.Module, layout: Layout) -> list[Unit]:
    """As `qkv.train.parallel.fsdp.shard` makes them of a rank's part, in the order in which a pass meets them."""
    ranks, apart = layout.shard * layout.context, layout.tensor
    units: list[Unit] = []
    taken: set[int] = set()

    def take(module: nn.Module, parameters: list[nn.Parameter], **more: Any) -> None:
        own = [each for each in dict.fromkeys(parameters) if id(each) not in taken]
        taken.update(map(id, own))
        if own:
            unit = {"ranks": ranks, "apart": apart, "replicas": layout.replicate} | more
            units.append(Unit(module, own, **unit))

    if layout.expert > 1:
        replicas = layout.data * layout.context // layout.expert
        near = layout.tensor if layout.context > 1 else layout.tensor * layout.expert
        for module in part.modules():
            if isinstance(module, Mixture):
                weights = [each.weight for each in module.modules() if isinstance(each, GroupedLinear)]
                ways = {id(each): next((at for at in (1, 2) if each.shape[at] % replicas == 0), 0) for each in weights}
                take(module, weights, ranks=replicas, apart=near, replicas=1, experts=True, ways=ways)
    for module in part.modules():
        if isinstance(module, Block):
            take(module, list(module.parameters()))
    take(part, list(part.parameters()), stays=True)
    return units


def shards(part: nn.Module, units: list[Unit], rank: int = 0) -> nn.Module:
    """The rank's part with what is left of every parameter when it is sharded: what an optimizer changes."""
    memory: dict[int, Any] = {}
    for unit in units:
        for parameter, shape in zip(unit.parameters, unit.shares(rank), strict=True):
            memory[id(parameter)] = _smaller(parameter, *shape)
    memory |= {id(buffer): buffer for buffer in part.buffers()}
    own: nn.Module = deepcopy(part, memory)
    return own
