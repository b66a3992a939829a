"""Several maps of one input that learn: their gradients are laid side by side and summed over rows in one pass.

What leaves attention on the way back are three tensors. One product wants them as one, and the bias their sum: two
passes over memory, or one if whoever moves them sums them too. There the maps are products of their own, which takes a
GPU as long as the joined one.

Shapes: m rows, k inputs, n outputs of all maps, nᵢ of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.parts.learned_map import learned_in_float32, mapped, mapped_across, weight_gradient
from qkv.parts.precision import narrow_copy, narrow_type
from qkv.parts.programs import is_itself, is_plain_parameter, runs_operators, unwatched

if TYPE_CHECKING:
    from qkv.parts.linear import JoinedLinear

NARROW = (torch.bfloat16, torch.float16)
ENOUGH = 1 << 22  # outputs; for fewer, launching the program takes the host longer than it saves
LONG = 512  # slots of a row; shorter ones have kernels of attention that read and write maps side by side
MULTIPLE = 64  # of each map's outputs
SEVERAL = (2, 3)  # maps


def fits(x: Tensor, joined: JoinedLinear) -> bool:
    """Whether the maps of x [b s k] may be learned so; a compiler may ask, who then sees operators."""
    if not torch.is_grad_enabled() or not runs_operators(x):
        return False
    if not is_itself(joined) or "together" in joined.__dict__ or not is_plain_parameter(joined.weight):
        return False
    sizes, dtype = joined.outputs.values(), narrow_type(x)
    if len(sizes) not in SEVERAL or any(size % MULTIPLE for size in sizes) or joined.bias is None:
        return False
    learns = joined.weight.requires_grad and joined.bias.requires_grad
    one_type = joined.weight.dtype == x.dtype or torch.is_autocast_enabled(x.device.type)
    large = x.ndim == 3 and x.shape[1] >= LONG and x.numel() // x.shape[-1] * sum(sizes) >= ENOUGH
    return learns and one_type and dtype in NARROW and large


def maps(x: Tensor, joined: JoinedLinear) -> tuple[Tensor, ...]:
    """Each of the maps, where they `fit`. [… k] → [… nᵢ] each"""
    dtype, bias = narrow_type(x), joined.whole_bias()
    assert bias is not None
    rows, weight, sizes = x.reshape(-1, x.shape[-1]).to(dtype), joined.matrix(), list(joined.outputs.values())
    narrow = narrow_copy(weight, dtype)
    found = _Maps.apply(rows, weight, narrow, bias, *narrow.split(sizes), *bias.detach().split(sizes))
    return tuple([each.view(*x.shape[:-1], -1) for each in found])


class _Maps(torch.autograd.Function):
    """A weight is given as it learns and as it is computed with; the last arguments are the rows of each map and their
    biases, cut outside: compiled by torch 2.11, a function may not give a tensor a second name (pytorch/180642)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, narrow: Tensor, bias: Tensor, *parts: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, narrow)
        ctx.wide = learned_in_float32(weight, x)
        maps = len(parts) // 2
        return tuple([mapped(x, parts[number], parts[maps + number]) for number in range(maps)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        x, narrow = ctx.saved_tensors
        put = _side_by_side if unwatched(above[0]) else _side_by_side_operator
        whole, sums = put(list(above))
        of_weight = weight_gradient(whole, x, ctx.wide)
        return mapped_across(whole, narrow), of_weight, None, sums, *[None for _ in range(2 * len(above))]


def _side_by_side(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """All of them as one, [m n], and its sum over rows, [n]."""
    if not parts[0].is_cuda:
        whole = torch.cat(parts, 1)
        return whole, whole.sum(0, dtype=torch.float32)
    from qkv.parts import joined_map_triton  # Triton comes with torch's builds for GPUs only

    whole, sums = _places(parts)
    close = [part if part.stride(1) == 1 else part.contiguous() for part in parts]
    joined_map_triton.side_by_side(close, whole, sums)
    return whole, sums


def _places(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    shape = parts[0].shape[0], sum(part.shape[1] for part in parts)
    return parts[0].new_empty(shape), parts[0].new_empty(shape[1], dtype=torch.float32)


_side_by_side_operator = torch.library.custom_op("qkv::side_by_side", _side_by_side, mutates_args=())
_side_by_side_operator.register_fake(_places)
