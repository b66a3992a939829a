"""Linear maps whose products are in 8 bits, forward and back.

Shapes: m rows, k width of the input, n of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.parts.precision import narrowed
from qkv.parts.programs import unwatched
from qkv.train.float8.product import of_type, product, type_on
from qkv.train.float8.rows import rounded, rounded_side_by_side, turned


def float8_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b in the type of x, or the one autocast gives it. x [… k], weight [n k], bias [n] → [… n]"""
    x = narrowed(x)
    y: Tensor = _Linear.apply(x.flatten(0, -2), weight, bias)
    return y.unflatten(0, x.shape[:-1])


def float8_joined(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The same in two or three parts. x [… k], weight [n k], bias [n] → […, each of these sizes]"""
    x = narrowed(x)
    parts: tuple[Tensor, ...] = _Joined.apply(x.flatten(0, -2), weight, bias, sizes)
    return tuple([each.unflatten(0, x.shape[:-1]) for each in parts])


class _Linear(torch.autograd.Function):
    """[m k] · [n k]ᵀ + [n]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        narrow_x, of_x = rounded(x)
        narrow_weight, of_weight = rounded(weight)
        ctx.save_for_backward(narrow_x, of_x, narrow_weight, of_weight)
        ctx.types = x.dtype, weight.dtype, None if bias is None else bias.dtype
        y = product(narrow_x, narrow_weight.t(), of_x, of_weight.t(), type_on(x.device), bias, quick=True)
        return of_type(y, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        x, of_x, weight, of_weight = ctx.saved_tensors
        kind, kind_of_weight, kind_of_bias = ctx.types
        above, of_above = rounded(above)
        # On the way to the weights rows are summed, which have a scale on either side. Both go with the gradient.
        both = of_above * of_x  # [m 1]
        top, top_of_weight = both.amax(), of_weight.amax()
        of_columns, one = top_of_weight.expand(1, weight.shape[1]).contiguous(), torch.ones_like(top)
        go_back = _back if unwatched(above) else _back_as_operator
        to_x, to_weight, to_bias = go_back(
            above, of_above, x, weight, of_weight, top_of_weight, of_columns, both, top, one
        )
        return to_x.to(kind), to_weight.to(kind_of_weight), None if kind_of_bias is None else to_bias.to(kind_of_bias)


class _Joined(torch.autograd.Function):
    """[m k] · [n k]ᵀ + [n], in parts of so many columns, whose gradients come apart and lie together when rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        narrow_x, of_x = rounded(x)
        narrow_weight, of_weight = rounded(weight)
        ctx.save_for_backward(narrow_x, of_x, narrow_weight, of_weight)
        ctx.types = x.dtype, weight.dtype, None if bias is None else bias.dtype
        go = _parts if unwatched(x) else _parts_as_operator
        kind = type_on(x.device)
        parts = go(narrow_x, of_x, narrow_weight, of_weight, None if bias is None else of_type(bias, kind), list(sizes))
        return tuple([of_type(each, x.dtype) for each in parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        x, of_x, weight, of_weight = ctx.saved_tensors
        kind, kind_of_weight, kind_of_bias = ctx.types
        top_of_weight = of_weight.amax()
        of_columns, one = top_of_weight.expand(1, weight.shape[1]).contiguous(), torch.ones_like(top_of_weight)
        go_back = _parts_back if unwatched(x) else _parts_back_as_operator
        to_x, to_weight, to_bias = go_back(list(above), x, of_x, weight, of_weight, top_of_weight, of_columns, one)
        to_bias = None if kind_of_bias is None else to_bias.to(kind_of_bias)
        return to_x.to(kind), to_weight.to(kind_of_weight), to_bias, None


def _back(
    above: Tensor, of_above: Tensor, x: Tensor, weight: Tensor, of_weight: Tensor, top_of_weight: Tensor,
    of_columns: Tensor, both: Tensor, top: Tensor, one: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x [m k], weight [n k] and bias [n]."""
    weight, _ = turned(weight, of_weight, top_of_weight)  # [k n]
    to_x = product(above, weight.t(), of_above, of_columns, type_on(above.device), quick=True)
    above, to_bias = turned(above, both, top, of_above)  # [n m], [n]
    assert to_bias is not None
    x, _ = turned(x)  # [k m]
    return to_x, product(above, x.t(), top, one, torch.float32), to_bias


_back_as_operator = torch.library.custom_op("qkv::float8_backward", _back, mutates_args=())


@_back_as_operator.register_fake
def _(
    above: Tensor, of_above: Tensor, x: Tensor, weight: Tensor, of_weight: Tensor, top_of_weight: Tensor,
    of_columns: Tensor, both: Tensor, top: Tensor, one: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    to_weight = torch.empty_like(weight, dtype=torch.float32)
    return torch.empty_like(x, dtype=type_on(x.device)), to_weight, to_weight.new_empty(len(weight))


def _parts(
    x: Tensor, of_x: Tensor, weight: Tensor, of_weight: Tensor, bias: Tensor | None, sizes: Sequence[int]
) -> list[Tensor]:
    """A product each: views of one would be one tensor with several names."""
    of_parts = zip(weight.split(sizes), of_weight.split(sizes), _split(bias, sizes), strict=True)
    kind = type_on(x.device)
    return [product(x, part.t(), of_x, of_part.t(), kind, own, quick=True) for part, of_part, own in of_parts]


def _split(bias: Tensor | None, sizes: Sequence[int]) -> Sequence[Tensor | None]:
    return [None] * len(sizes) if bias is None else bias.split(sizes)


def _parts_back(
    parts: Sequence[Tensor], x: Tensor, of_x: Tensor, weight: Tensor, of_weight: Tensor, top_of_weight: Tensor,
    of_columns: Tensor, one: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    above, of_above, both, top = rounded_side_by_side(parts, of_x)
    return _back(above, of_above, x, weight, of_weight, top_of_weight, of_columns, both, top, one)


_parts_as_operator = torch.library.custom_op("qkv::float8_parts", _parts, mutates_args=())
_parts_back_as_operator = torch.library.custom_op("qkv::float8_parts_backward", _parts_back, mutates_args=())


@_parts_as_operator.register_fake
def _(
    x: Tensor, of_x: Tensor, weight: Tensor, of_weight: Tensor, bias: Tensor | None, sizes: Sequence[int]
) -> list[Tensor]:
    return [x.new_empty(x.shape[0], size, dtype=type_on(x.device)) for size in sizes]


@_parts_back_as_operator.register_fake
def _(
    parts: Sequence[Tensor], x: Tensor, of_x: Tensor, weight: Tensor, of_weight: Tensor, top_of_weight: Tensor,
    of_columns: Tensor, one: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    to_weight = torch.empty_like(weight, dtype=torch.float32)
    return torch.empty_like(x, dtype=type_on(x.device)), to_weight, to_weight.new_empty(weight.shape[0])
