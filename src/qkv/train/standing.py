"""A batch that stays where it is and is filled anew: a recorded step reads the same memory each time."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import fields, replace
from typing import Any, NoReturn

import torch
from torch import Tensor


class HostAsks(Exception):
    """Something that depends on a number of a batch is decided on the host."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the host decides by the number `{name}` of a batch")
        self.name = name


class Number(Tensor):
    """A whole number of a batch, on the device, in the place of the one that the host knows.

    Counts differ between batches of one shape. As tensors they flow into other tensors, and a record computes with
    those of the batch at hand; whoever needs one on the host is told no, where a plain number would become part of the
    record for good.
    """

    called: str  # its field
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # what is computed from it is an ordinary tensor

    @staticmethod
    def of(name: str, device: torch.device) -> Number:
        # Whole: multiplied with a loss it gives float32, as a number of the host does.
        number = torch.zeros((), dtype=torch.long, device=device).as_subclass(Number)
        number.called = name
        return number

    def _no(self, *_: object) -> NoReturn:
        raise HostAsks(self.called)

    __bool__ = __int__ = __float__ = __index__ = __array__ = item = tolist = _no
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _no
    __hash__ = Tensor.__hash__


def kind_of(batch: Any, asked: Collection[str] = ()) -> Hashable:
    """What batches must have in common to share a record: shapes, and all else but counts.

    `asked` are the names of counts that the host decides by.
    """
    return type(batch), *[_kind(getattr(batch, each.name), each.name in asked) for each in fields(batch)]


def _kind(value: Any, asked: bool) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    # True and 1 are equal, and are not the same.
    return (int,) if _counts(value) and not asked else (type(value), value)


def _counts(value: Any) -> bool:
    return type(value) is int


class StandingBatch:
    """Tensors and counts like those of a batch, with the rest of it as it is."""

    def __init__(self, like: Any, asked: Collection[str] = ()) -> None:
        values = {each.name: getattr(like, each.name) for each in fields(like)}
        self._tensors = {name: torch.empty_like(value) for name, value in values.items() if isinstance(value, Tensor)}
        devices = {tensor.device for tensor in self._tensors.values()}
        if len(devices) != 1:  # what lies on the host may be read there, unnoticed
            raise TypeError(f"tensors of a batch lie on {len(devices)} devices")
        (device,) = devices
        names = [name for name, value in values.items() if _counts(value) and name not in asked]
        self._numbers = {name: Number.of(name, device) for name in names}
        self._filled: dict[str, int] = {}
        self._like = replace(like, **self._tensors, **self._numbers)

    @property
    def batch(self) -> Any:
        """A fresh one each time: what a batch has once computed from its tensors, and kept, would be another's."""
        return replace(self._like)

    def fill(self, batch: Any) -> None:
        torch._foreach_copy_(list(self._tensors.values()), [getattr(batch, name) for name in self._tensors])
        for name, number in self._numbers.items():
            value = getattr(batch, name)
            if self._filled.get(name) != value:
                number.fill_(value)
                self._filled[name] = value
