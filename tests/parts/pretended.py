"""Tensors that say they lie on a device which this machine does not have, and are computed with on the CPU.

They refuse what such a device refuses: double precision, and operations with tensors that lie elsewhere. What is read
back without waiting for it is refused too: nobody knows when it arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

CPU = torch.device("cpu")


class Elsewhere(Tensor):
    """A tensor of the CPU that says it lies on another device."""

    place: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def moved(x: Any, place: torch.device) -> Any:
    if not isinstance(x, Tensor) or isinstance(x, Elsewhere):
        return x
    if x.dtype in (torch.float64, torch.complex128):
        raise TypeError(f"The device {place} has no double precision.")
    found = x.as_subclass(Elsewhere)
    found.place = place
    return found


INDEXES = {"__getitem__", "__setitem__"}  # whose places may lie on the CPU


class Pretends(TorchFunctionMode):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.place = torch.device(kind)
        self.ran = 0  # operations there

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "_has_compatible_shallow_copy_type":
            return isinstance(args[0], Elsewhere)  # else parameters are replaced when a module moves, and not filled
        if name == "__get__":
            asked = getattr(getattr(function, "__self__", None), "__name__", "")
            if isinstance(args[0], Elsewhere) and asked in ("device", "is_cpu", "is_cuda", "is_mps", "is_xpu"):
                return self.place if asked == "device" else asked == f"is_{self.place.type}"
        if name in ("to", "cpu", "cuda", "pin_memory") and isinstance(args[0], Tensor):
            return self._sent(name, args, kwargs)
        flat, _ = tree_flatten((args, kwargs))
        there = any(isinstance(each, Elsewhere) for each in flat) or self._is_here(kwargs.get("device"))
        if not there:
            return function(*args, **kwargs)
        self.ran += 1
        if name not in INDEXES:
            for each in flat:
                if isinstance(each, Tensor) and not isinstance(each, Elsewhere) and each.ndim > 0:
                    raise RuntimeError(f"{name} of tensors on {self.place} and on the CPU.")
        if self._is_here(kwargs.get("device")):
            kwargs["device"] = CPU
        found = function(*args, **kwargs)
        return tree_map(lambda each: moved(each, self.place), found)

    def _is_here(self, device: Any) -> bool:
        return device is not None and torch.device(device).type == self.place.type

    def _sent(self, name: str, args: Any, kwargs: Any) -> Any:
        x, *rest = args
        if name == "cuda" or name == "pin_memory":
            raise RuntimeError(f"{name} on a machine that has {self.place} alone.")
        target = CPU if name == "cpu" else None
        for each in (*rest, kwargs.get("device")):
            if isinstance(each, str | torch.device):
                target = torch.device(each)
            elif isinstance(each, Tensor):
                target = each.place if isinstance(each, Elsewhere) else CPU
        if isinstance(x, Elsewhere) and target == CPU and kwargs.get("non_blocking") and x.numel() > 1:
            raise RuntimeError("An answer is read before it has arrived.")
        target = (x.place if isinstance(x, Elsewhere) else CPU) if target is None else target
        rest = [CPU if isinstance(each, str | torch.device) else each for each in rest]
        kwargs = {key: CPU if key == "device" else value for key, value in kwargs.items()}
        found = getattr(Tensor, name)(x, *rest, **kwargs)
        return moved(found, self.place) if target.type == self.place.type else found.as_subclass(Tensor)


@contextmanager
def pretended(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretends]:
    """Inside, this machine has a device of such a kind."""
    if kind == "mps":
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *_: True)
    else:
        monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
        monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    for module in (torch.mps, torch.xpu):
        monkeypatch.setattr(module, "get_rng_state", lambda *_: torch.get_rng_state())
        monkeypatch.setattr(module, "set_rng_state", lambda state, *_: torch.set_rng_state(state))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
    with Pretends(kind) as mode:
        yield mode
