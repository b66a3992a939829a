"""Maps of a model that only answers, on a CPU, by oneDNN.

torch asks Intel's MKL for products in single precision, which leaves part of the speed of other makers' processors
unused. The other library that torch brings, oneDNN, uses all of them alike.
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

SMALL = 2**18  # numbers of a matrix; with fewer torch's own product is as fast, and called more quickly


# As oneDNN calls them, and what it is told beside.
ACTIVATIONS = {"": ("none", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}


def product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "") -> Tensor:
    """activation(x Wᵀ + b) by oneDNN; W may be packed beforehand."""
    name, told = ACTIVATIONS[activation]
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, name, [], told)
    return y


@cache
def mkl_is_slow(told: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is one that MKL was not made for, as far as the system tells."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return has_both and told.exists() and "AuthenticAMD" in told.read_text(encoding="utf-8", errors="replace")


class ByOneDNN(TorchFunctionMode):
    """Inside, torch's linear maps that `fit` are oneDNN's."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.linear and not kwargs and fit(*args):
            x, weight, bias = (*args, None)[:3]
            return product(x, weight, bias)
        return function(*args, **(kwargs or {}))


def fit(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether an answer alone is asked for, in single precision on a CPU, of a matrix that lies as it is."""
    return (
        not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and type(x) is Tensor
        and type(weight) in (Tensor, nn.Parameter)
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and weight.numel() >= SMALL
        and weight.is_contiguous()
        and x.numel() > 0
    )


@contextmanager
def quick_maps(model: nn.Module) -> Iterator[None]:
    """Inside, large maps of a model are by the library that is the quickest here."""
    large = any(
        each.device.type == "cpu" and each.dtype == torch.float32 and each.numel() >= SMALL
        for each in model.parameters()
    )
    if not (large and mkl_is_slow()):
        yield
        return
    with ByOneDNN():
        yield
