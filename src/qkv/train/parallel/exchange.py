"""What ranks give each other in the middle of a pass, with gradients that go the same way back.

Shapes: n rows, d width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup


class Trip(NamedTuple):
    """Rows go from every rank to every rank, and back."""

    leave: Sequence[int]  # how many rows this rank sends to each
    arrive: Sequence[int]  # how many it gets from each
    group: Group

    @torch.compiler.disable
    def there(self, x: Tensor) -> Tensor:
        """The first rows for the first rank; the first that come are the first rank's. [n d]"""
        answer: Tensor = _Travel.apply(x, self)
        return answer

    def back(self, x: Tensor) -> Tensor:
        return self.returned().there(x)

    def returned(self) -> "Trip":
        return Trip(self.arrive, self.leave, self.group)


@torch.compiler.disable
def added_up(x: Tensor, group: Group) -> Tensor:
    """The sum over the ranks. The loss of each depends on it, so its gradient is the sum of theirs."""
    answer: Tensor = _Sum.apply(x, group)
    return answer


class _Travel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, trip: Trip) -> Tensor:
        ctx.trip = trip
        return _send(x, trip)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _send(gradient, ctx.trip.returned()), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sum(gradient, ctx.group), None


def _send(x: Tensor, trip: Trip) -> Tensor:
    arrived = x.new_empty(sum(trip.arrive), *x.shape[1:])
    dist.all_to_all_single(arrived, x.contiguous(), list(trip.arrive), list(trip.leave), group=trip.group)
    return arrived


def _sum(x: Tensor, group: Group) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
