"""Maps with what comes behind them in one program, on GPUs that have a copy engine: activation(x W + b), y + x W,
norms of such a sum, and what queries read in short rows. On a CPU the first of them is one call too (`cpu_maps`).

Shapes: m rows, k inputs, n hidden units; x [m k], W₁ [n k], W₂ [k n].
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.parts import cpu_maps, cpu_steps, product
from qkv.parts.learned_map import learned_in_float32, mapped, mapped_across, weight_gradient
from qkv.parts.precision import narrow_copy, narrow_type
from qkv.parts.programs import is_itself, is_plain, runs_operators, runs_our_own, unwatched

LEAST = 1 << 22  # outputs of all rows; for fewer, launching the program takes the host longer than it saves
MOST_INPUTS = 3072  # of a map without an activation: with more, torch's own product is as quick
NARROW = (torch.bfloat16, torch.float16)


def fits(x: Tensor, linear: nn.Module, activation: str) -> bool:
    """Whether activation(linear(x)) may be one program: a plain map, no gradients, and enough to do."""
    if runs_our_own(x):
        return _plain(linear) and not _asked(x, linear) and _worth_it(x, linear.weight)
    if not unwatched(x):
        return False
    if isinstance(linear, cpu_maps.PackedModule):
        return cpu_maps.is_own(linear, x)
    return _plain(linear) and cpu_maps.fit(x, linear.weight, linear.bias, activation) and cpu_maps.mkl_is_slow()


def fits_trained(x: Tensor, inner: nn.Module, outer: nn.Module) -> bool:
    """The same of outer(activation(inner(x))) and its gradients; a compiler may ask, who then sees operators."""
    if not runs_operators(x) or not _plain(inner) or not _plain(outer) or outer.out_features != inner.in_features:
        return False
    return _asked(x, inner, outer) and _worth_it(x, inner.weight)


def activated_map(x: Tensor, linear: nn.Linear, activation: str) -> Tensor:
    """activation(linear(x)), where it `fits`. [... k] → [... n]"""
    if isinstance(linear, cpu_maps.PackedModule):
        return cpu_steps.map_rows(cpu_maps.own_map(linear), x, activation=activation)
    if x.device.type == "cpu":
        return cpu_maps.product(x, linear.weight, linear.bias, activation)
    dtype = narrow_type(x)
    rows = x.reshape(-1, x.shape[-1]).to(dtype)
    y = product.activated_map(product.aligned(rows), product.aligned(linear.weight.to(dtype)), linear.bias, activation)
    return y.view(*x.shape[:-1], -1)


def linear_map(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, by a program of our own where only the answer is asked for and it is quicker. [... k] → [... n]"""
    if not _answers(x, weight, bias):
        return cpu_maps.quickest(x, weight, bias)
    y = product.activated_map(product.aligned(x.reshape(-1, x.shape[-1])), product.aligned(weight), bias, "")
    return y.view(*x.shape[:-1], -1)


def add_map(stream: Tensor, x: Tensor, weight: Tensor) -> None:
    """stream += x Wᵀ, likewise. [m n] [m k] [n k]"""
    if _answers(x, weight, stream) and stream is product.aligned(stream):
        product.add_map(product.aligned(x), product.aligned(weight), stream)
    else:
        stream.addmm_(x, weight.t())


def fits_normed(stream: Tensor, x: Tensor, weight: Tensor) -> bool:
    """Whether norm(stream + x Wᵀ + b) may be one program: it saves a pass over the stream, whatever k is."""
    return _alike(x, weight, stream) and stream is product.aligned(stream) and product.norming(len(weight)) is not None


def add_normed_map(stream: Tensor, x: Tensor, linear: nn.Linear, norm: product.Norm) -> None:
    """stream = norm(stream + linear(x)), where it `fits_normed`. [m n] [m k]"""
    product.add_normed_map(product.aligned(x), product.aligned(linear.weight), linear.bias, stream, norm)


def fits_attended(x: Tensor, weight: Tensor, heads: int) -> bool:
    """Whether what queries read may be made where they, keys and values are: a head of a row is just a tile."""
    whole = x.ndim == 3 and x.shape[1] == product.SLOTS and len(weight) == 3 * heads * product.HEAD
    return whole and _answers(x, weight, None)


def attended_map(x: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """softmax(scale · q kᵀ) v, where it `fits_attended`; q, k and v are the thirds of x Wᵀ + b. [b s k] → [b s n/3]"""
    rows = product.aligned(x.reshape(-1, x.shape[-1]))
    return product.attended_map(rows, product.aligned(weight), bias, scale).view(*x.shape[:-1], -1)


def feed_forward(x: Tensor, inner: nn.Linear, outer: nn.Linear, activation: str) -> Tensor:
    """outer(activation(inner(x))), where it `fits_trained`. [... k] → [... k]"""
    dtype = narrow_type(x)
    rows = x.reshape(-1, x.shape[-1]).to(dtype)
    narrow = narrow_copy(inner.weight, dtype), narrow_copy(outer.weight, dtype)
    y = _FeedForward.apply(rows, inner.weight, inner.bias, outer.weight, outer.bias, *narrow, activation)
    return y.view(*x.shape[:-1], -1)


class _FeedForward(torch.autograd.Function):
    """Hidden units before and after the activation are kept, as torch's operators do.

    Weights are given as they learn, and `narrow`, as they are computed with.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, outer: Tensor, outer_bias: Tensor | None,
        narrow: Tensor, narrow_outer: Tensor, name: str,
    ) -> Tensor:  # fmt: skip
        z, h = _both(x, narrow, bias, name)
        ctx.save_for_backward(x, narrow, narrow_outer, z, h)
        ctx.name, ctx.wide = name, (learned_in_float32(weight, x), learned_in_float32(outer, x))
        return mapped(h, narrow_outer, outer_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        x, narrow, narrow_outer, z, h = ctx.saved_tensors
        of_x, of_weight, of_bias, of_outer, of_outer_bias, *_ = ctx.needs_input_grad
        dz, sums = _times_slope(above, narrow_outer, z, ctx.name)
        return (
            mapped_across(dz, narrow) if of_x else None,
            weight_gradient(dz, x, ctx.wide[0]) if of_weight else None,
            sums if of_bias else None,
            weight_gradient(above, h, ctx.wide[1]) if of_outer else None,
            above.sum(0, dtype=torch.float32) if of_outer_bias else None,
            None,
            None,
            None,
        )


def _both(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    return (_both_at_once if runs_our_own(x) else _both_operator)(x, weight, bias, activation)


def _times_slope(above: Tensor, outer: Tensor, z: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return (_times_slope_at_once if runs_our_own(z) else _times_slope_operator)(above, outer, z, activation)


def _both_at_once(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """z = x W₁ᵀ + b₁, and its activation."""
    return product.both(product.aligned(x), product.aligned(weight), bias, activation)


def _times_slope_at_once(above: Tensor, outer: Tensor, z: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """dz = (above W₂) · activation'(z), and its sum over rows."""
    return product.map_times_slope(product.aligned(above), product.aligned(outer), product.aligned(z), activation)


_both_operator = torch.library.custom_op("qkv::activated_map", _both_at_once, mutates_args=())
_times_slope_operator = torch.library.custom_op("qkv::map_times_slope", _times_slope_at_once, mutates_args=())


@_both_operator.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    shape = x.shape[0], weight.shape[0]  # no len, which asks for a number where a compiler has a letter
    return x.new_empty(shape), x.new_empty(shape)


@_times_slope_operator.register_fake
def _(above: Tensor, outer: Tensor, z: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(z), z.new_empty(z.shape[1], dtype=torch.float32)


def _plain(linear: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether calling it is a product and nothing else: no adapter, no other precision, no hook."""
    if type(linear) is not nn.Linear or not is_itself(linear):
        return False
    watched = linear._backward_hooks or linear._backward_pre_hooks
    return not watched and is_plain(linear.weight)


def _asked(x: Tensor, *maps: nn.Module) -> bool:
    """Whether gradients are asked for."""
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or any(parameter.requires_grad for each in maps for parameter in each.parameters())


def _answers(x: Tensor, weight: Tensor, other: Tensor | None) -> bool:
    """Whether a map without an activation may be our own, and is quicker."""
    return weight.shape[1] <= MOST_INPUTS and _alike(x, weight, other)


def _alike(x: Tensor, weight: Tensor, other: Tensor | None) -> bool:
    """Whether they are plain tensors of one type that a program takes, without gradients, and there is enough to do."""
    given = (x, weight) if other is None else (x, weight, other)
    if not runs_our_own(x) or narrow_type(x) != x.dtype:
        return False
    if any(type(each) not in (Tensor, nn.Parameter) or each.dtype != x.dtype for each in given):
        return False
    learned = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    return not learned and _worth_it(x, weight)


def _worth_it(x: Tensor, weight: Tensor) -> bool:
    """Whether there is enough to do, of a kind that tensor cores and the copy engine take."""
    (n, k), dtype = weight.shape, narrow_type(x)
    if dtype not in NARROW or k % 8 or n % 8 or x.numel() // k * n < LEAST:
        return False
    one_type = weight.dtype == x.dtype or torch.is_autocast_enabled(x.device.type)
    return one_type and weight.device == x.device and product.runs_on(x.device)
