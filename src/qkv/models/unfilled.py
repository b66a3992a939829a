"""Building a model only to look at its shapes: quickly, and without memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FILLING = {
    nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_, Tensor.zero_, Tensor.fill_, Tensor.mul,
    Tensor.__mul__,
}  # fmt: skip


class Unfilled(TorchFunctionMode):
    """Inside, new tensors are not filled with numbers: where there is no memory that takes long and does nothing.

    Tables that are computed, such as those of sines, are computed in memory, and cut short: they are no parameters.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("tensor")
        if function in _FILLING and first.is_meta:
            return first
        if function is torch.arange:
            return torch.arange(2, device="cpu", dtype=kwargs.get("dtype"))
        if function is torch.linalg.vector_norm and first.is_meta and "dim" in kwargs:  # its shape is all that matters
            gone = {each % first.ndim for each in kwargs["dim"]}
            return first.new_empty([size for place, size in enumerate(first.shape) if place not in gone])
        if function is torch.randn:
            return torch.empty(*args, **{key: value for key, value in kwargs.items() if key != "generator"})
        return function(*args, **kwargs)
