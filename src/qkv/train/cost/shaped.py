"""Tensors that have a shape, a type and a place, and no numbers: all that a step needs to be counted.

They lie on torch's `meta` device, whose operations compute shapes only, and say of themselves that they lie on the
device that is asked about, so that kernels are chosen as they would be there, on a machine that has no such device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from qkv.parts import cuda

NOWHERE = torch.device("meta")
HOPPER, MULTIPROCESSORS = 9, 132  # what a GPU is taken for where nobody knows better


class Shaped(Tensor):
    """A tensor without numbers that stands for one on `place`; `body` is the same on the device `meta`."""

    body: Tensor
    place: torch.device
    counts_programs = False  # whether programs of a GPU are counted on them, as `parts/programs.py` asks

    @staticmethod
    def __new__(cls, body: Tensor, place: torch.device) -> Shaped:
        made = Tensor._make_subclass(cls, body, body.requires_grad)
        made.body, made.place = body, place
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.place.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return self.place.type == "cpu"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operator: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        raise RuntimeError(f"{operator} was asked of a tensor without numbers, outside of what counts it.")


class ShapesOnly(TorchDispatchMode):
    """Inside, operators on shaped tensors compute shapes; `ran` is told of each."""

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self.place = place

    def ran(self, operator: Any, given: Any, named: Any, made: Any) -> None:
        """What came of an operator, in bodies; to be overridden."""

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        owners: dict[int, Shaped] = {}
        shaped = False

        def body(value: Any) -> Any:
            nonlocal shaped
            if isinstance(value, Shaped):
                owners[id(value.body)] = value
                shaped = True
                return value.body
            if isinstance(value, torch.device) and value == NOWHERE:
                shaped = True
            return value

        given, named = tree_map(body, (tuple(given), dict(named or {})))
        if not shaped:
            return operator(*given, **named)
        given, named = tree_map(_nowhere, (given, named))
        if operator is torch.ops.aten.add.Tensor and given_is_summed_in_place(owners.get(id(given[0]))):
            operator = torch.ops.aten.add_.Tensor
        # A product into wider numbers: torch 2.11 does not know the shape of it, which is that of what it fills.
        fills = operator is torch.ops.aten.addmm.dtype_out
        made = named["out"] if fills else operator(*given, **named)
        self.ran(operator, given, named, made)

        def dressed(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.device != NOWHERE:
                return value
            return owners[id(value)] if id(value) in owners else Shaped(value, self.place)

        return tree_map(dressed, made)


# References to a gradient that waits for others to be added to it: those of autograd's buffer, of the call that brings
# it here, and of its Python object; and to its memory: by both tensors that share it, and by a Python object.
_REFERENCES, _OF_STORAGE = 4, 3
_BETWEEN = ("_fn", "inner", "__torch_dispatch__")


def given_is_summed_in_place(first: Shaped | None) -> bool:
    """Whether autograd would sum gradients in the memory of the first, which it does to all but tensors like these."""
    if first is None or first._use_count() > _REFERENCES:  # type: ignore[attr-defined]
        return False
    frame = sys._getframe(1)
    while frame.f_code.co_name in _BETWEEN and frame.f_back is not None:
        frame = frame.f_back
    alone = torch._C._storage_Use_Count(first.body.untyped_storage()._cdata) <= _OF_STORAGE
    return frame.f_code.co_name == "_engine_run_backward" and alone and first.body.is_contiguous()


def _nowhere(value: Any) -> Any:
    """A small tensor of numbers among shapes, such as an index, becomes a shape itself; single numbers may stay."""
    real = isinstance(value, Tensor) and value.device != NOWHERE and value.dim() > 0
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=NOWHERE) if real else value


def shaped_copy(model: nn.Module, place: torch.device) -> nn.Module:
    """The model with shapes in place of its numbers; what is shared stays shared, and nothing is copied."""
    from copy import deepcopy

    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        if id(tensor) in memo:
            continue
        stand_in: Tensor = without_numbers(tensor, place)
        if isinstance(tensor, nn.Parameter):
            stand_in = nn.Parameter(stand_in, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = stand_in
        if tensor.grad is not None:
            memo[id(tensor.grad)] = None
    copied: nn.Module = deepcopy(model, memo)
    return copied


def without_numbers(tensor: Tensor, place: torch.device) -> Shaped:
    """A tensor's shape, strides and type on another place."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=NOWHERE)
    return made if isinstance(made, Shaped) else Shaped(made, place)


def is_there(place: torch.device) -> bool:
    """Whether this machine has that GPU."""
    return place.type == "cuda" and torch.cuda.is_available() and (place.index or 0) < torch.cuda.device_count()


def _properties(place: torch.device, generation: int | None) -> Any:
    """Of a GPU of a generation; of none: of the one that is there, or else of a Hopper."""
    if generation is None and is_there(place):
        return torch.cuda.get_device_properties(place)
    return SimpleNamespace(major=generation or HOPPER, minor=0, multi_processor_count=MULTIPROCESSORS)


@contextmanager
def pretending(place: torch.device, generation: int | None = None) -> Iterator[None]:
    """Inside, what asks torch about the GPU gets the answers of one that is there."""
    if place.type != "cuda":
        with _foreach_takes_shaped():
            yield
        return
    from torch.cuda.amp import common
    from torch.utils import _foreach_utils

    told = _properties(place, generation)
    with ExitStack() as stack:
        stack.enter_context(_foreach_takes_shaped())
        stack.enter_context(
            replaced(_foreach_utils, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "meta"])
        )
        stack.enter_context(replaced(common, "amp_definitely_not_available", lambda: False))
        stack.enter_context(replaced(torch.cuda, "is_bf16_supported", lambda *_, **__: True))
        stack.enter_context(replaced(torch.cuda, "get_rng_state", lambda *_: None))
        stack.enter_context(replaced(torch.cuda, "get_device_properties", lambda *_: told))
        if not torch.cuda.is_available():  # torch's builds for GPUs bring along what compiles CUDA C
            stack.enter_context(replaced(cuda, "has_bindings", lambda: True))
        yield


@contextmanager
def _foreach_takes_shaped() -> Iterator[None]:
    """torch runs one kernel over many tensors only where it knows their type."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    lists: list[Any] = [optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types]
    for known in lists:
        known.append(Shaped)
    try:
        yield
    finally:
        for known in lists:
            known.remove(Shaped)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, `owner.name` is another."""
    missing = object()
    before = owner.__dict__.get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
