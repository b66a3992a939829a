"""Maps of a model that only answers, on a CPU that Intel has not made.

torch asks Intel's MKL for products in single precision, which on processors of others leaves a sixth of their speed
unused, and more for few rows. The other library that torch brings, oneDNN, uses all of them alike.
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

LARGE = 2**18  # numbers of a matrix; with fewer the product is called as long as it takes


@cache
def is_of_others(told: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is one of which MKL makes little, as far as the system tells."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return has_both and told.exists() and "AuthenticAMD" in told.read_text(encoding="utf-8", errors="replace")


class ByOneDNN(TorchFunctionMode):
    """Inside, torch's linear maps that `fit` are oneDNN's."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.linear and not kwargs and fit(*args):
            x, weight, bias = (*args, None)[:3]
            return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
        return function(*args, **(kwargs or {}))


def fit(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether an answer alone is asked for, in single precision on a CPU, of a matrix that lies as it is."""
    return (
        not torch.is_grad_enabled()
        and type(x) is Tensor
        and type(weight) in (Tensor, nn.Parameter)
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and weight.numel() >= LARGE
        and weight.is_contiguous()
        and x.numel() > 0
    )


@contextmanager
def quick_maps(model: nn.Module) -> Iterator[None]:
    """Inside, large maps of a model are by the library that is the quickest here."""
    large = any(
        each.device.type == "cpu" and each.dtype == torch.float32 and each.numel() >= LARGE
        for each in model.parameters()
    )
    if not (large and is_of_others()):
        yield
        return
    with ByOneDNN():
        yield
