"""x + added + bias and the norm of it, as one step of a stream that learns.

Written as two operations, the way back is five passes over memory: the norm's slope, its sum with the gradient that
passes by, a narrow copy for the product before, and the gradients of its bias and of the norm's own weights. Here it is
one: whoever adds to the stream leaves its bias to be added with it, and reads a gradient that is narrow already.

Shapes: d width of the stream; all of […] are rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.parts.norm import LayerNorm, RMSNorm, numbers_of
from qkv.parts.programs import unwatched


def sum_norm(
    x: Tensor, added: Tensor | None, bias: Tensor | None, norm: LayerNorm | RMSNorm, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x + added + bias as wide as x, and its norm, of that kind. [… d] → [… d] [… d]"""
    return _SumNorm.apply(x, added, bias, *numbers_of(norm), kind)


def norm_of_sum(
    x: Tensor, added: Tensor | None, bias: Tensor | None, norm: LayerNorm | RMSNorm, kind: torch.dtype
) -> Tensor:
    """The second alone, where nobody goes on with the first."""
    y: Tensor = _NormOfSum.apply(x, added, bias, *numbers_of(norm), kind)
    return y


class _SumNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, bias: Tensor | None, gain: Tensor, shift: Tensor | None,
        epsilon: float, rms: bool, kind: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        there = made_there if unwatched(x) else _there_operator
        total, y, statistics = there(x, added, bias, gain, shift, epsilon, rms, kind)
        ctx.save_for_backward(total, statistics, gain)
        ctx.rms, ctx.narrow = rms, None if added is None else added.dtype
        return total, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: Tensor, of_y: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, of_total, of_y)


class _NormOfSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        return _SumNorm.forward(ctx, *given)[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, None, of_y)


def _gradients(ctx: Any, of_total: Tensor | None, of_y: Tensor) -> tuple[Tensor | None, ...]:
    total, statistics, gain = ctx.saved_tensors
    back = made_back if unwatched(of_y) else _back_operator
    of_x, of_added, (of_gain, of_shift, of_bias) = back(of_total, of_y, total, statistics, gain, ctx.rms, ctx.narrow)
    _, to_added, to_bias, to_gain, to_shift, *_ = ctx.needs_input_grad
    return (
        of_x,
        of_added if to_added else None,
        of_bias if to_bias else None,
        of_gain if to_gain else None,
        of_shift if to_shift else None,
        None,
        None,
        None,
    )


def made_there(
    x: Tensor, added: Tensor | None, bias: Tensor | None, gain: Tensor, shift: Tensor | None, epsilon: float,
    rms: bool, kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The sum, its norm, and of each row the mean (not where `rms`) and the rate by which the norm multiplies it."""
    total, y, statistics = _places_there(x, added, bias, gain, shift, epsilon, rms, kind)
    if x.is_cuda:
        from qkv.parts import sum_norm_triton  # Triton comes with torch's builds for GPUs only

        added = None if added is None else added.contiguous()
        sum_norm_triton.sum_norm(x.contiguous(), added, bias, gain, shift, epsilon, rms, total, y, statistics)
        return total, y, statistics
    total.copy_(sum([each for each in (added, bias) if each is not None], x))
    mean = 0.0 if rms else total.mean(-1)
    statistics[0] = mean
    statistics[1] = torch.rsqrt((total - statistics[0][..., None]).square().mean(-1) + epsilon)
    if rms:
        y.copy_(F.rms_norm(total, gain.shape, gain, epsilon))
    else:
        y.copy_(F.layer_norm(total, gain.shape, gain, shift, epsilon))
    return total, y, statistics


def made_back(
    of_total: Tensor | None, of_y: Tensor, total: Tensor, statistics: Tensor, gain: Tensor, rms: bool,
    narrow: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, of what was added (of nothing, where that is None), and of gain, shift and bias, [3 d]."""
    of_x, of_added, sums = _places_back(of_total, of_y, total, statistics, gain, rms, narrow)
    if total.is_cuda:
        from qkv.parts import sum_norm_triton

        of_total = None if of_total is None else of_total.contiguous()
        copy = None if narrow is None else of_added
        sum_norm_triton.sum_norm_back(of_total, of_y.contiguous(), total, statistics, gain, rms, of_x, copy, sums)
        return of_x, of_added, sums
    mean, rate = statistics[..., None]
    slope, normed, d = of_y.to(total.dtype), (total - mean) * rate, total.shape[-1]
    sums[0], sums[1] = (slope * normed).view(-1, d).sum(0), slope.reshape(-1, d).sum(0)
    slope = slope * gain
    shared = normed * (slope * normed).mean(-1, keepdim=True)
    of_x.copy_((slope - (shared if rms else shared + slope.mean(-1, keepdim=True))) * rate)
    if of_total is not None:
        of_x += of_total
    if narrow is not None:
        of_added.copy_(of_x)
    sums[2] = of_x.view(-1, d).sum(0)
    return of_x, of_added, sums


def _places_there(
    x: Tensor, added: Tensor | None, bias: Tensor | None, gain: Tensor, shift: Tensor | None, epsilon: float,
    rms: bool, kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=kind), gain.new_empty(2, *x.shape[:-1])


def _places_back(
    of_total: Tensor | None, of_y: Tensor, total: Tensor, statistics: Tensor, gain: Tensor, rms: bool,
    narrow: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    of_added = total.new_empty(0) if narrow is None else torch.empty_like(total, dtype=narrow)
    return torch.empty_like(total), of_added, gain.new_empty(3, total.shape[-1])


_there_operator = torch.library.custom_op("qkv::sum_norm", made_there, mutates_args=())
_there_operator.register_fake(_places_there)
_back_operator = torch.library.custom_op("qkv::sum_norm_back", made_back, mutates_args=())
_back_operator.register_fake(_places_back)
