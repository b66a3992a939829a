"""Where narrow numbers are too coarse: norms, softmaxes, positions and losses are computed in float32 at least."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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


class NarrowCopies:
    """Narrow copies of weights that were asked for in the last pass, for this one made at once.

    A GPU makes them faster so than one by one, and which will be asked for is known to those alone who ask.
    """

    def __init__(self) -> None:
        self.asked: dict[int, Tensor] = {}
        self.made: dict[int, Tensor] = {}

    @contextmanager
    def at_hand(self, dtype: torch.dtype) -> Iterator[None]:
        """Inside, `narrow_copy` finds them."""
        global _current
        weights = list(self.asked.values())
        copies = [torch.empty_like(weight, dtype=dtype, requires_grad=False) for weight in weights]
        if copies:
            with torch.no_grad():
                torch._foreach_copy_(copies, weights)
        self.asked, self.made = {}, {id(weight): copy for weight, copy in zip(weights, copies, strict=True)}
        before, _current = _current, self
        try:
            yield
        finally:
            _current, self.made = before, {}

    def of(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        self.asked[id(weight)] = weight
        made = self.made.get(id(weight))
        return made if made is not None and made.dtype == dtype else weight.detach().to(dtype)


_current: NarrowCopies | None = None


def narrow_copy(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """What is computed with in place of a weight that learns; nothing is learned through it."""
    if torch.compiler.is_compiling() or weight.dtype == dtype or _current is None:
        return weight.detach().to(dtype)
    return _current.of(weight, dtype)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Inside, autocast narrows nothing on the device of x; tensors with shapes and no numbers need no such care."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)
