"""Maps of a model that only answers, on a CPU, by what is the quickest there.

torch asks Intel's MKL for products in single precision, which leaves part of the speed of other makers' processors
unused. Our own program (`cpu_maps.h`) does many rows there, with an activation inside, in bfloat16 too. Where its
registers are too narrow, or rows are few, it is the other library that torch brings, oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.parts import cpu_steps
from qkv.parts.programs import is_itself, unwatched

SMALL = 2**18  # numbers of a matrix; with fewer torch's own product is as fast, and called more quickly
SMALL_FOR_MANY = 2**17  # the same where our own program does many rows: MiniLM's are larger
STREAMS = (torch.float32, torch.bfloat16)  # precisions of what is mapped
MANY = 128  # rows; with fewer, panels of a matrix are made for too few of them


# As oneDNN calls them, and what it is told beside.
ACTIVATIONS = {"": ("none", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "") -> Tensor:
    """activation(x Wᵀ + b) by oneDNN; W may be packed beforehand."""
    name, told = ACTIVATIONS[activation]
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, name, [], told)
    return y


@cache
def onednn_takes(kind: torch.dtype) -> bool:
    """Whether oneDNN multiplies in this precision on this processor. Asked for another one, it refuses."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    narrow = kind == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return kind == torch.float32 or narrow


def product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "") -> Tensor:
    """activation(x Wᵀ + b), where they `fit`."""
    if is_ours(x, weight):
        return cpu_steps.map_rows(cpu_steps.PlainMap(weight, bias), x, activation=activation)
    return by_onednn(x, weight, bias, activation)


def is_ours(x: Tensor, weight: Tensor) -> bool:
    """Whether our own program is the quickest for these, which fit in all else."""
    return x.numel() >= MANY * x.shape[-1] and cpu_steps.takes_many(weight)


def quickest(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, likewise, or by torch."""
    if x.device.type == "cpu" and unwatched(x) and fit(x, weight, bias) and mkl_is_slow():
        return product(x, weight, bias)
    return F.linear(x, weight, bias)


class PackedModule(nn.Module):
    """A map whose matrix is in the order in which our own program reads it, where that is had."""

    map: cpu_steps.PackedMap | None = None
    scale = 1.0  # of its input


class PackedJoined(nn.Module):
    """Several maps of one input, side by side in a packed one."""

    together: PackedModule


def packed_map(module: nn.Module) -> cpu_steps.PackedMap | None:
    """The map that a module is and nothing else, in the order in which our own program reads it, where that is had."""
    if isinstance(module, PackedJoined) and is_itself(module):
        module = module.together
    if isinstance(module, PackedModule) and is_itself(module) and module.scale == 1.0:
        return module.map
    return None


def is_own(linear: nn.Module, x: Tensor) -> bool:
    """Whether our own program is the quickest for this map of rows like x: it may then do more than the map."""
    if x.device.type != "cpu" or x.dtype not in STREAMS or not is_itself(linear):
        return False
    if isinstance(linear, PackedModule):
        return packed_map(linear) is not None
    return type(linear) is nn.Linear and fit(x, linear.weight) and is_ours(x, linear.weight) and mkl_is_slow()


def own_map(linear: nn.Linear | PackedModule) -> cpu_steps.PackedMap | cpu_steps.PlainMap:
    """The map as our own program reads it, where it `is_own`, of any rows."""
    if isinstance(linear, PackedModule):
        assert linear.map is not None
        return linear.map
    return cpu_steps.PlainMap(linear.weight, linear.bias)


@cache
def mkl_is_slow(told: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is one that MKL was not made for, as far as the system tells."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return has_both and told.exists() and "AuthenticAMD" in told.read_text(encoding="utf-8", errors="replace")


class QuickMaps(TorchFunctionMode):
    """Inside, torch's linear maps that `fit` are by what is the quickest.

    Whatever asks torch for anything then asks here first, which costs a pass of BERT 3,900 times some microseconds.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.linear and not kwargs and fit(*args):
            x, weight, bias = (*args, None)[:3]
            return product(x, weight, bias)
        return function(*args, **(kwargs or {}))


def fit(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "") -> bool:
    """Whether an answer alone is asked for on a CPU, of a matrix that lies as it is, and someone is quicker than torch.

    In bfloat16 torch asks oneDNN by itself.
    """
    plain = (
        not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and type(x) is Tensor
        and type(weight) in (Tensor, nn.Parameter)
        and x.dtype == weight.dtype
        and x.device.type == weight.device.type == "cpu"
        and weight.is_contiguous()
        and x.numel() > 0
    )
    if not plain or weight.numel() < min(SMALL, SMALL_FOR_MANY):
        return False
    if is_ours(x, weight):
        return weight.numel() >= SMALL_FOR_MANY and activation in cpu_steps.ACTIVATIONS
    return weight.numel() >= SMALL and x.dtype == torch.float32 and activation in ACTIVATIONS


@contextmanager
def without_asking() -> Iterator[None]:
    """Inside, nobody asks QuickMaps, if it is there alone: for those who know by themselves what is the quickest."""
    modes = torch.overrides._get_current_function_mode_stack()
    if len(modes) != 1 or not isinstance(modes[0], QuickMaps):
        yield
        return
    with torch._C.DisableTorchFunction():
        yield


@contextmanager
def quick_maps(model: nn.Module) -> Iterator[None]:
    """Inside, large maps of a model are by the library that is the quickest here."""
    large = any(
        each.device.type == "cpu" and each.dtype in cpu_steps.KINDS and each.numel() >= SMALL
        for each in model.parameters()
    )
    if not (large and mkl_is_slow()):
        yield
        return
    with QuickMaps():
        yield
