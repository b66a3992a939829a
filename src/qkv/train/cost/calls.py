"""What torch decides by the device before an operator runs, decided here for the device that is asked about.

Three things: where new tensors lie, what autocast casts, and which kernel a fused attention is computed by. On the
device `meta` torch would decide them otherwise, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

from qkv.train.cost.backends import AttentionCall, attend
from qkv.train.cost.shaped import NOWHERE, Shaped, replaced

# What autocast computes in the narrow type, and what in float32, by the names of functions and methods.
# fmt: off
_PRODUCTS = frozenset([
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "mv", "bmm", "addmm", "addmv", "baddbmm", "addbmm", "addr",
    "einsum", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
])
_WIDE_ON_CUDA = frozenset([
    "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "pow", "__pow__", "softplus", "layer_norm",
    "group_norm", "softmax", "log_softmax", "cumsum", "cumprod", "prod", "sum", "norm", "cosine_similarity",
    "cross_entropy", "nll_loss", "kl_div", "l1_loss", "smooth_l1_loss", "mse_loss", "huber_loss",
    "binary_cross_entropy_with_logits", "cdist", "logsumexp",
])
_WIDE_ON_CPU = frozenset([
    "binary_cross_entropy", "cdist", "cosine_similarity", "kl_div", "l1_loss", "mse_loss", "smooth_l1_loss",
])
# fmt: on


class DeviceCalls(TorchFunctionMode):
    """Stands for the device `place` in calls of torch's functions."""

    def __init__(self, place: torch.device, attention: tuple[str, ...]) -> None:
        """`attention` are the kernels of fused attention in the order in which the device tries them."""
        super().__init__()
        self.place, self.attention = place, attention
        self.wide = _WIDE_ON_CUDA if place.type == "cuda" else _WIDE_ON_CPU
        self.during_backward: Callable[[], AbstractContextManager[None]] = nullcontext
        self.narrowed: dict[int, tuple[Tensor, Tensor]] = {}  # weights that were cast, kept as autocast keeps them

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        with replaced(torch, "clear_autocast_cache", self.narrowed.clear), self:
            yield

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = dict(named or {})
        if function is Tensor.backward:
            # Called anew with this mode on, which torch has put aside: the way back has calls of its own.
            with self, self.during_backward():
                return _engine_run_backward(
                    (given[0],), (torch.ones_like(given[0]),), False, False, (), True, accumulate_grad=True
                )
        if function is torch.autograd.grad:
            with self:
                return _gradients(*given, **named)
        given, named = self._moved(getattr(function, "__name__", ""), given, named)
        if function is F.scaled_dot_product_attention:
            return attend(AttentionCall.of(*given, **named), self.place, self.attention, self._cast)
        if function is F.rms_norm and self.place.type == "cuda":
            return _rms_norm(*given, **named)
        if function in (F.dropout, torch.dropout) and self.place.type == "cuda":
            return _dropout(*given, **named)
        if torch.is_autocast_enabled(self.place.type):
            name = getattr(function, "__name__", "")
            if name in _PRODUCTS:
                given, named = self._cast((given, named))
            elif name in self.wide:
                given, named = _each_tensor(lambda x: x.float() if _is_narrow(x) else x, (given, named))
        return function(*given, **named)

    def _moved(self, name: str, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """With tensors that are made on the device, or brought there, made nowhere."""
        if name == "to":
            given = tuple(self._place(value) for value in given)
        if named.get("device") is not None:
            named["device"] = self._place(torch.device(named["device"]))
        return given, named

    def _place(self, value: Any) -> Any:
        if isinstance(value, str) and value.partition(":")[0] == self.place.type:
            return NOWHERE
        return NOWHERE if isinstance(value, torch.device) and value.type == self.place.type else value

    def _cast(self, values: Any) -> Any:
        """Tensors as autocast gives them to a matrix product; a weight is cast once for all its uses."""
        if not torch.is_autocast_enabled(self.place.type):
            return values
        return _each_tensor(self._narrow, values)

    def _narrow(self, x: Tensor) -> Tensor:
        wanted = torch.get_autocast_dtype(self.place.type)
        if not isinstance(x, Shaped) or not x.is_floating_point() or x.dtype in (wanted, torch.float64):
            return x
        if not (x.is_leaf and x.requires_grad and torch.is_grad_enabled() and torch.is_autocast_cache_enabled()):
            return x.to(wanted)
        if id(x) not in self.narrowed:
            self.narrowed[id(x)] = x, x.to(wanted)
        return self.narrowed[id(x)][1]


def _is_narrow(x: Tensor) -> bool:
    return isinstance(x, Shaped) and x.dtype in (torch.bfloat16, torch.float16)


def _each_tensor(change: Any, values: Any) -> Any:
    if isinstance(values, Tensor):
        return change(values)
    if isinstance(values, list | tuple) and type(values) in (list, tuple):
        return type(values)(_each_tensor(change, value) for value in values)
    if isinstance(values, dict):
        return {name: _each_tensor(change, value) for name, value in values.items()}
    return values


def _rms_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """In one kernel, of which shapes know no way back: it reads, makes and keeps what a layer norm does."""
    return torch.layer_norm(x, list(shape), weight, None, 1e-6 if eps is None else eps)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """In one kernel, which keeps a byte for each number."""
    if not training or p == 0:
        return x
    made: Tensor = torch.ops.aten.native_dropout(x, p, True)[0]
    return made


def _gradients(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    **_: Any,
) -> Any:
    """`torch.autograd.grad` without its own look at modes."""
    outputs, inputs, given = (
        tuple(each) if isinstance(each, list | tuple) else (each,) for each in (outputs, inputs, grad_outputs)
    )
    return _engine_run_backward(
        outputs, given, bool(retain_graph), create_graph, inputs, bool(allow_unused), accumulate_grad=False
    )
