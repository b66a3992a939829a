"""Matrix products of rows that belong to groups, each group with a matrix of its own: all of them at once.

How many rows a group has is known to the device alone, and the host never waits to hear it: every shape follows from
the number of rows and of groups.

Shapes: n rows, e groups, d width of a row, f width of the answer, c blocks, r rows of a block.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.precision import narrow_type, narrowed
from qkv.parts.programs import runs_or_counts
from qkv.parts.spec import Depends

BYTES_TOGETHER = 16  # of what the grouped kernel reads at a time: rows begin at multiples of it


class Groups:
    """n rows sorted by their groups. `order` says which row comes where, `ends` where each group ends."""

    def __init__(self, group: Tensor, groups: int) -> None:
        """group [n]: the number of each row's group."""
        self.count, self.groups = len(group), groups
        narrow = torch.int16 if groups < 2**15 else torch.int32  # of which fewer digits are sorted
        self.group, self.order = group.to(narrow).sort(stable=True)  # [n] each
        slots = torch.arange(self.count, device=group.device)
        self.inverse = torch.empty_like(self.order).scatter_(0, self.order, slots)  # where each row went
        numbers = torch.arange(groups, dtype=narrow, device=group.device)
        self.ends = torch.searchsorted(self.group, numbers, right=True, out_int32=True)  # [e]
        self._blocks: tuple[Tensor, Tensor, int] | None = None

    @classmethod
    def by_programs(cls, group: Tensor, number: Tensor, sums: Tensor, groups: int) -> Groups:
        """The same for group [b s], by a program of a GPU that is told how many of a row came before. [b s] [b 2e+3]"""
        from qkv.parts import expert_triton  # Triton comes with torch's builds for GPUs only

        made = cls.__new__(cls)
        made.count, made.groups, made._blocks = group.numel(), groups, None
        made.inverse, made.order, made.group, made.ends = expert_triton.sorted_places(group, number, sums, groups)
        return made

    def sort(self, x: Tensor, copies: int = 1) -> Tensor:
        """Rows in the order of their groups, as autocast would have them; each of x stands for `copies` of them.

        [n/copies d] → [n d]
        """
        return _Moved.apply(x, None, self.order, self.inverse, copies, False, narrow_type(x))

    def restore(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """The inverse of `sort`, copies apart, each row times its weight. [n d] [n] → [n d]"""
        return _Moved.apply(x, weights, self.inverse, self.order, 1, False, x.dtype)

    def blocks(self) -> tuple[Tensor, Tensor, int]:
        """A place for each sorted row in blocks of one group each, the group of each block, and the rows of a block.

        Blocks hold half of what a group has on average, so at most about half as many places as rows stay empty.
        m groups that have rows need at most m + (n - m) / r blocks: the last of each may be all but empty.
        """
        if self._blocks is None:
            rows = max(1, math.ceil(self.count / (2 * self.groups)))
            most = min(self.groups, self.count)
            count = most + (self.count - most) // rows
            starts = torch.cat((self.ends.new_zeros(1), self.ends[:-1])).long()  # [e]
            ends = ((self.ends - starts + rows - 1) // rows).cumsum(0)  # [e] of each group's blocks
            moved = torch.cat((ends.new_zeros(1), ends[:-1])) * rows - starts  # [e] how far each group moves
            places = torch.arange(self.count, device=self.order.device) + moved[self.group.long()]  # [n]
            numbers = torch.arange(count, device=self.order.device)
            owners = torch.searchsorted(ends, numbers, right=True).clamp(max=self.groups - 1)  # [c]
            self._blocks = places, owners, rows
        return self._blocks


class EvenGroups:
    """Groups with as many places each, of which a row has one or, where its group is full, none.

    What stands in a place without a row is some row, and what a row without a place gets back is some other's answer:
    both count for nothing as long as that answer is multiplied by 0, and neither has a gradient.
    """

    def __init__(self, place: Tensor, groups: int, places: int) -> None:
        """place [n]: that of each row among all of the groups, one group after the other; -1: it has none."""
        self.groups, self.places, self.place = groups, places, place
        rows = torch.arange(len(place), device=place.device)
        behind = groups * places  # where all rows go that have no place
        order = rows.new_full((behind + 1,), -1).scatter_(0, torch.where(place < 0, behind, place), rows)
        self.order = order[:-1]  # [groups · places] the row of each place; -1: none

    @classmethod
    def by_programs(cls, group: Tensor, number: Tensor, sums: Tensor, groups: int, places: int) -> EvenGroups:
        """For group [b s], of which each has so many `places` for a row, by a program of a GPU. [b s] [b 2e+3]"""
        from qkv.parts import expert_triton

        made = cls.__new__(cls)
        made.groups, made.places = groups, len(group) * places
        made.place, made.order = expert_triton.even_places(group, number, sums, groups, places)
        return made

    def sort(self, x: Tensor, copies: int = 1) -> Tensor:
        """Rows in their places, as autocast would have them; each of x stands for `copies` of them.

        [n/copies d] → [groups·places d]
        """
        return _Moved.apply(x, None, self.order, self.place, copies, True, narrow_type(x))

    def restore(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """The inverse of `sort`, copies apart, each row times its weight. [groups·places d] [n] → [n d]"""
        return _Moved.apply(x, weights, self.place, self.order, 1, True, x.dtype)


class _Moved(torch.autograd.Function):
    """x[index / copies], each row times its weight, in another type.

    Its gradient is a gather too, by `back`: nothing is added up in an order that the device chooses. With `gaps` an
    index may be -1, for any row: it has no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor | None,
        index: Tensor,
        back: Tensor,
        copies: int,
        gaps: bool,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.copies, ctx.gaps, ctx.given = copies, gaps, x.dtype
        ctx.save_for_backward(back, *(() if weights is None else (index, weights, x)))
        if _can_carry(x):
            from qkv.parts import expert_triton

            return expert_triton.carry(x, index, dtype, share=copies, own=weights)
        moved = x.to(dtype)[index // copies if copies > 1 else index]
        return moved if weights is None else moved * weights.to(dtype)[:, None]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None, None, None]:
        back, *weighed = ctx.saved_tensors
        weights = weighed[1] if weighed else None
        to_weights = None
        if _can_carry(gradient):
            from qkv.parts import expert_triton

            to_x = expert_triton.carry(gradient, back, ctx.given, copies=ctx.copies, theirs=weights)
            if weighed:
                index, _, x = weighed
                to_weights = expert_triton.products(x, index, gradient)
            return to_x, to_weights, None, None, None, None, None
        if weighed:
            index, weights, x = weighed
            to_weights = (gradient * x[index]).sum(1).to(weights.dtype)
            gradient = gradient * weights.to(gradient.dtype)[:, None]
        mine = gradient[back]
        if ctx.gaps:
            mine = mine.masked_fill(back[:, None] < 0, 0)
        mine = mine if ctx.copies == 1 else mine.unflatten(0, (-1, ctx.copies)).sum(1)
        return mine.to(ctx.given), to_weights, None, None, None, None, None


def _can_carry(x: Tensor) -> bool:
    """Whether programs of a GPU can, which compute in float32."""
    return runs_or_counts(x) and x.dtype != torch.float64 and x.numel() > 0


def grouped_product(x: Tensor, weight: Tensor, groups: Groups | EvenGroups) -> Tensor:
    """Each sorted row times the matrix of its group, as fast as the device can. [n d] [e d f] → [n f]"""
    if x.is_meta:  # without numbers any matrix does, and the operations counted are those that are needed
        return x @ weight[0]
    x, weight = narrowed(x), narrowed(weight)
    if isinstance(groups, EvenGroups):
        return torch.bmm(x.unflatten(0, (groups.groups, groups.places)), weight).flatten(0, 1)
    if kernel_takes(x, weight):
        return kernel_product(x, weight, groups)
    return block_product(x, weight, groups)


def kernel_takes(x: Tensor, weight: Tensor) -> bool:
    """Whether torch's grouped kernel can compute the product."""
    together = BYTES_TOGETHER // weight.element_size()
    aligned = weight.shape[1] % together == 0 and weight.shape[2] % together == 0
    able = x.device.type != "cuda" or torch.cuda.get_device_properties(x.device).major >= 8
    return x.dtype == weight.dtype == torch.bfloat16 and aligned and able and len(x) > 0


def kernel_product(x: Tensor, weight: Tensor, groups: Groups) -> Tensor:
    """By torch's grouped kernel, which reads where groups end and computes no row too many."""
    return F.grouped_mm(x.contiguous(), weight, offs=groups.ends)


def block_product(x: Tensor, weight: Tensor, groups: Groups) -> Tensor:
    """By one batched product of blocks that are filled up with zeros; for every device and every kind of number."""
    places, owners, rows = groups.blocks()
    filled = x.new_zeros(len(owners) * rows, x.shape[1]).index_copy(0, places, x)
    made = torch.bmm(filled.unflatten(0, (-1, rows)), weight.index_select(0, owners))  # [c r f]
    return made.flatten(0, 1)[places]


class GroupedLinear(nn.Module):
    """A linear map without a bias for each group, as one tensor [groups, inputs, outputs]."""

    depends_on = Depends("weight")

    def __init__(self, groups: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = math.sqrt(6 / (inputs + outputs))  # of each map by its own size [glorot2010 eq.16]
        self.weight = nn.Parameter(torch.empty(groups, inputs, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor, groups: Groups | EvenGroups) -> Tensor:
        """Sorted rows. [n inputs] → [n outputs]"""
        return grouped_product(x, self.weight, groups)

    def extra_repr(self) -> str:
        groups, inputs, outputs = self.weight.shape
        return f"{groups} × ({inputs} → {outputs})"
