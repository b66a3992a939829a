"""Where narrow numbers are too coarse: norms, softmaxes, positions and losses are computed in float32 at least."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """x in float32 where it is narrower; float64 stays as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def narrow_type(x: Tensor) -> torch.dtype:
    """The type that autocast would give x, where it is on."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def narrowed(x: Tensor) -> Tensor:
    """x as autocast would have it: for kernels that it does not know."""
    return x.to(narrow_type(x))


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Inside, autocast narrows nothing on the device of x; tensors with shapes and no numbers need no such care."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)
