"""activation(x W + b) without passes of its own for bias and activation, on GPUs that have a copy engine."""

from __future__ import annotations

from functools import cache
from typing import TypeGuard

import torch
from torch import Tensor, nn

from qkv.parts.precision import narrow_type
from qkv.parts.programs import runs_our_own

LEAST = 1 << 24  # numbers of the answer; for fewer, launching the program takes the host longer than it saves
NARROW = (torch.bfloat16, torch.float16)
ALIGNED = 16  # bytes, as the copy engine asks


def fits(x: Tensor, linear: nn.Module) -> bool:
    """Whether the map is a plain one, nobody asks for gradients, and there is enough to do."""
    if not runs_our_own(x) or not _plain(linear):
        return False
    m, (n, k) = x.numel() // max(x.shape[-1], 1), linear.weight.shape
    dtype = narrow_type(x)
    if m * n < LEAST or dtype not in NARROW or k * dtype.itemsize % ALIGNED or n * dtype.itemsize % ALIGNED:
        return False
    given = [x, *linear.parameters()]
    if torch.is_grad_enabled() and any(each.requires_grad for each in given):
        return False
    one_type = all(each.dtype == x.dtype for each in given) or torch.is_autocast_enabled(x.device.type)
    return one_type and _has_copy_engine(x.device)


def activated_map(x: Tensor, linear: nn.Linear, activation: str) -> Tensor:
    """activation(linear(x)), where it `fits`. [... k] → [... n]"""
    from qkv.parts import activated_map_triton  # Triton comes with torch's builds for GPUs only

    dtype = narrow_type(x)
    rows = _aligned(x.reshape(-1, x.shape[-1]).to(dtype))
    weight, bias = _aligned(linear.weight.to(dtype)), None if linear.bias is None else linear.bias.to(dtype)
    return activated_map_triton.activated_map(rows, weight, bias, activation).view(*x.shape[:-1], -1)


def _plain(linear: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether calling it is a product and nothing else: no adapter, no other precision, no hook."""
    hooks = (linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    weight = linear.weight if type(linear) is nn.Linear and "forward" not in vars(linear) else None
    return weight is not None and runs_our_own(weight) and not any(hooks)


def _aligned(x: Tensor) -> Tensor:
    """Rows as the copy engine takes them."""
    fits = x.stride(1) == 1 and x.stride(0) * x.itemsize % ALIGNED == 0 and x.data_ptr() % ALIGNED == 0
    return x if fits and x.stride(0) >= x.shape[1] else x.clone(memory_format=torch.contiguous_format)


@cache
def _has_copy_engine(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9
