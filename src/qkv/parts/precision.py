"""Where narrow numbers are too coarse: norms, softmaxes, positions and losses are computed in float32 at least."""

from collections.abc import Iterator, Sequence
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


_at_hand: dict[tuple[int, torch.dtype], Tensor] = {}  # narrow copies, by the number of their tensor


@contextmanager
def narrow_copies(weights: Sequence[Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Inside, `narrow_copy` of these is at hand: all are made at once, which a GPU does faster than one by one."""
    copies = [torch.empty_like(weight, dtype=dtype, requires_grad=False) for weight in weights]
    if copies:
        with torch.no_grad():
            torch._foreach_copy_(copies, list(weights))
    made = {(id(weight), dtype): copy for weight, copy in zip(weights, copies, strict=True)}
    _at_hand.update(made)
    try:
        yield
    finally:
        for key in made:
            _at_hand.pop(key, None)


def narrow_copy(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """What is computed with in place of a weight that learns; nothing is learned through it."""
    made = None if torch.compiler.is_compiling() else _at_hand.get((id(weight), dtype))
    return weight.detach().to(dtype) if made is None else made


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Inside, autocast narrows nothing on the device of x; tensors with shapes and no numbers need no such care."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)
