"""The length of a gradient whose numbers lie on many ranks, and its clipping.

torch's own function wants parameters that all lie on the same ranks in the same way; ours lie in several, or are plain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

TINY = 1e-6  # what torch adds to a length before it divides by it


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The L2 norm of all gradients together, the same on all ranks of the world, which must all ask. []

    Each number counts once: every rank adds what it holds, divided by the number of ranks that hold the same. A plain
    tensor is the same on all of them, a DTensor on those that no way of its mesh shards.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return get_total_norm([_own(gradient) for gradient in gradients])
    norms = torch._foreach_norm([_own(gradient) for gradient in gradients])  # [] each
    squares = torch.stack([norm.double() for norm in norms]).square()  # [n], none of which overflows
    copies = torch.tensor([_copies(gradient) for gradient in gradients], dtype=squares.dtype)
    total = (squares / copies.to(squares.device, non_blocking=True)).sum()
    dist.all_reduce(total)
    return total.sqrt().float()


def clip_gradients(parameters: Iterable[Tensor], most: float, norm: Tensor) -> None:
    """Shorten the gradient to the length `most` where its `norm` is longer; on the device, without waiting for it.

    What torch's `clip_grads_with_norm_` does, on each rank with the numbers that it holds.
    """
    gradients = [_own(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, (most / (norm + TINY)).clamp(max=1.0))


def _copies(gradient: Tensor) -> int:
    """Ranks of the world that hold the same numbers of this gradient."""
    world = dist.get_world_size()
    if not isinstance(gradient, DTensor):
        return world
    mesh, placements = gradient.device_mesh, gradient.placements
    assert not any(placement.is_partial() for placement in placements), "a gradient that was not summed has no norm yet"
    return world // math.prod(mesh.size(way) for way, each in enumerate(placements) if not each.is_replicate())


def _own(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
