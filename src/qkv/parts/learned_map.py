"""x W + b that learns, by the product of our own where that is faster, on GPUs that have a copy engine.

Compilers have nothing to add to such a product where sums and norms behind it are programs too (`sum_norm.py`).

Shapes: m rows, k inputs, n outputs; x [m k], W [n k].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.parts import product
from qkv.parts.precision import narrow_copy, narrow_type
from qkv.parts.programs import is_plain, runs_operators, runs_our_own, unwatched

LEAST = 1 << 24  # outputs of all rows; with fewer, tiles of ours leave multiprocessors idle
NARROW = (torch.bfloat16, torch.float16)
MULTIPLE = 8  # of inputs and outputs, whose rows begin at multiples of 16 bytes


def learned_map(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`; a bias learns nothing where ours is taken, so who gives one has it detached. [… k] → [… n]"""
    if not _fits(x, weight):
        return F.linear(x, weight, bias)
    dtype = narrow_type(x)
    y = _Map.apply(x.reshape(-1, x.shape[-1]).to(dtype), weight, narrow_copy(weight, dtype), bias)
    return y.view(*x.shape[:-1], -1)


def mapped(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, [m k] [n k] [n] → [m n]"""
    if not _pays(x, weight, weight.shape[0]):
        return F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    return (_mapped_at_once if runs_our_own(x) else _mapped_operator)(x, weight, bias)


def map_into(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """y = x Wᵀ + b, in a place that is there already; nobody asks for gradients. [m n] [m k] [n k] [n]"""
    narrow = x.dtype in NARROW and y.dtype == weight.dtype == x.dtype
    if narrow and runs_our_own(x) and _pays(x, weight, weight.shape[0]) and y is product.aligned(y):
        product.map_into(y, product.aligned(x), product.aligned(weight), bias)
    elif bias is None:
        torch.mm(x, weight.T, out=y)
    else:
        torch.addmm(bias, x, weight.T, out=y)


def mapped_across(x: Tensor, weight: Tensor) -> Tensor:
    """x W, [m n] [n k] → [m k]"""
    if not _pays(x, weight, weight.shape[1]):
        return x @ weight
    return (_across_at_once if runs_our_own(x) else _across_operator)(x, weight)


def learned_in_float32(weight: Tensor, x: Tensor) -> bool:
    """Whether the gradient of a weight is to be wider than what it is computed from."""
    return weight.dtype == torch.float32 and x.dtype in NARROW


def weight_gradient(above: Tensor, x: Tensor, wide: bool) -> Tensor:
    """aboveᵀ x; a `wide` one in float32, as it is summed: no pass makes it so, and nothing is rounded between.

    [m n] [m k] → [n k]
    """
    if not wide:
        return above.T @ x
    return (_wide_gradient if unwatched(x) else _wide_gradient_operator)(above, x)


class _Map(torch.autograd.Function):
    """A weight is given twice: as it learns, and as it is computed with."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, narrow: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, narrow)
        ctx.wide = learned_in_float32(weight, x)
        return mapped(x, narrow, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        x, narrow = ctx.saved_tensors
        of_x, of_weight, _, _ = ctx.needs_input_grad
        gradient = weight_gradient(above, x, ctx.wide) if of_weight else None
        return mapped_across(above, narrow) if of_x else None, gradient, None, None


def _mapped_at_once(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return product.activated_map(product.aligned(x), product.aligned(weight), bias, "")


def _across_at_once(x: Tensor, weight: Tensor) -> Tensor:
    return product.map_across(product.aligned(x), product.aligned(weight))


def _wide_gradient(above: Tensor, x: Tensor) -> Tensor:
    if not x.is_cuda:
        return above.T.float() @ x.float()
    return torch.mm(above.T, x, out_dtype=torch.float32)


_mapped_operator = torch.library.custom_op("qkv::mapped", _mapped_at_once, mutates_args=())
_across_operator = torch.library.custom_op("qkv::mapped_across", _across_at_once, mutates_args=())
_wide_gradient_operator = torch.library.custom_op("qkv::weight_gradient", _wide_gradient, mutates_args=())


@_mapped_operator.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@_across_operator.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@_wide_gradient_operator.register_fake
def _(above: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(above.shape[1], x.shape[1], dtype=torch.float32)


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Whether ours is taken; a compiler may ask, who then sees operators."""
    if not torch.is_grad_enabled() or not runs_operators(x) or not is_plain(weight):
        return False
    one_type = weight.dtype == x.dtype or torch.is_autocast_enabled(x.device.type)
    alike = one_type and narrow_type(x) in NARROW and weight.device == x.device
    return alike and _pays(x, weight, weight.shape[0])


def _pays(x: Tensor, weight: Tensor, outputs: int) -> bool:
    """Whether there is enough to do, of rows that the copy engine takes."""
    if weight.shape[0] % MULTIPLE or weight.shape[1] % MULTIPLE or x.numel() // x.shape[-1] * outputs < LEAST:
        return False
    return product.runs_on(x.device)
