"""Building a model without first numbers: to fill it with those of a file, or only to look at its shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DRAWING = {nn.init.normal_, nn.init.uniform_, nn.init.kaiming_normal_, nn.init.kaiming_uniform_}
_WITHIN = {Tensor.normal_: "mean", Tensor.uniform_: "from"}  # what other ways to begin draw by, and what lies in range
_MAKING = {torch.rand, torch.randn}
_FILLING = {Tensor.zero_, Tensor.fill_, Tensor.copy_, Tensor.mul, Tensor.__mul__}


class Undrawn(TorchFunctionMode):
    """Inside, no random numbers are drawn for new tensors: all of them are replaced at once, and drawing takes long.

    What a model computes by rule is computed, and so is what is drawn from a generator, which says that the numbers
    matter.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is None:
            if function in _DRAWING:
                return args[0] if args else kwargs["tensor"]
            if function in _WITHIN:
                # Not left as it is: who draws until all numbers lie within bounds would never end.
                within = args[1] if len(args) > 1 else kwargs.get(_WITHIN[function], 0.0)
                return args[0] if args[0].is_meta else args[0].fill_(within)
            if function in _MAKING:
                return torch.empty(*args, **{key: value for key, value in kwargs.items() if key != "generator"})
        return function(*args, **kwargs)


class Unfilled(Undrawn):
    """Inside, new tensors are not filled with numbers: where there is no memory that takes long and does nothing.

    Tables that are computed, such as those of sines, are computed in memory, and cut short: they are no parameters.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("tensor", kwargs.get("tensors"))
        if function in _FILLING and first.is_meta:
            return first
        if function is torch.arange:
            return torch.arange(2, device="cpu", dtype=kwargs.get("dtype"))
        if function is torch.linalg.vector_norm and first.is_meta and "dim" in kwargs:  # its shape is all that matters
            gone = {each % first.ndim for each in kwargs["dim"]}
            return first.new_empty([size for place, size in enumerate(first.shape) if place not in gone])
        if function is torch.cat and all(each.is_meta for each in first):
            whole = list(first[0].shape)
            axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            whole[axis] = sum(each.shape[axis] for each in first)
            return first[0].new_empty(whole)
        if function in _MAKING or function in _DRAWING or function in _WITHIN:
            kwargs = {**kwargs, "generator": None}
        return super().__torch_function__(function, types, args, kwargs)
