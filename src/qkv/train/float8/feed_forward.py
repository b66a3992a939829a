"""A feed-forward whose products are in 8 bits, forward and back, with nothing read twice in between.

What the activation makes is rounded where it is made, and laid out for the product that comes next and for the one of
the way back. For that the scale of a row is known before its numbers are: no number of a product is larger than the
length of a row of one matrix times that of a column of the other. So a scale is some 8 times what it need be; of 8 bits
with an exponent that costs nothing but the smallest numbers, those some 3,000 times smaller than the largest.

Shapes: m rows, k width of the stream, n hidden units; W₁ [n k], W₂ [k n].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.parts.precision import narrowed
from qkv.parts.programs import unwatched
from qkv.train.float8.activations import STEEPEST, activated, sloped
from qkv.train.float8.product import of_type, product, type_on
from qkv.train.float8.rows import powers, rounded, turned

SLACK = 1.2  # what rounding may add to the lengths of a row and a column, and to their product: (1 + 2⁻⁴)² and a little


def float8_feed_forward(x: Tensor, inner: nn.Linear, outer: nn.Linear, activation: str) -> Tensor:
    """outer(activation(inner(x))). [… k] → [… k]"""
    x = narrowed(x)
    y: Tensor = _FeedForward.apply(x.flatten(0, -2), inner.weight, inner.bias, outer.weight, outer.bias, activation)
    return y.unflatten(0, x.shape[:-1])


class _FeedForward(torch.autograd.Function):
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂"""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, outer: Tensor, outer_bias: Tensor | None, name: str
    ) -> Tensor:
        narrow_x, of_x = rounded(x)
        narrow_weight, of_weight = rounded(weight)
        narrow_outer, of_outer = rounded(outer)
        most = _lengths(x) * _lengths(weight).amax()  # [m 1]
        inverse, of_h = powers((most if bias is None else most + bias.abs().amax()) * SLACK)
        go = _forth if unwatched(x) else _forth_as_operator
        kind = type_on(x.device)
        y, z, h = go(
            narrow_x, of_x, narrow_weight, of_weight, None if bias is None else of_type(bias, kind),
            inverse, of_h, narrow_outer, of_outer, None if outer_bias is None else of_type(outer_bias, kind), name,
        )  # fmt: skip
        longest = _lengths(outer.t()).amax()
        ctx.save_for_backward(narrow_x, of_x, narrow_weight, of_weight, z, h, of_h, narrow_outer, of_outer, longest)
        ctx.types = [None if each is None else each.dtype for each in (x, weight, bias, outer, outer_bias)]
        ctx.name = name
        return of_type(y, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        x, of_x, weight, of_weight, z, h, of_h, outer, of_outer, longest = ctx.saved_tensors
        inverse, of_z = powers(_lengths(above) * (longest * (SLACK * STEEPEST)))
        above, of_above = rounded(above)
        # On the way to the weights rows are summed, which have a scale on either side. Both go with the gradient.
        both, outer_both = of_z * of_x, of_above * of_h  # [m 1] each
        top, outer_top, one = both.amax(), outer_both.amax(), torch.ones_like(longest)
        go_back = _back if unwatched(above) else _back_as_operator
        found = go_back(
            above, of_above, x, weight, of_weight, of_weight.amax().expand(1, weight.shape[1]).contiguous(),
            outer, of_outer, of_outer.amax(), z, inverse * of_above, of_z, of_x * of_above, top,
            h, outer_both, outer_top, one, ctx.name,
        )  # fmt: skip
        to_x, to_weight, to_bias, to_outer, to_outer_bias = (
            None if kind is None else each.to(kind) for each, kind in zip(found, ctx.types, strict=True)
        )
        return to_x, to_weight, to_bias, to_outer, to_outer_bias, None


def _lengths(x: Tensor) -> Tensor:
    """Of rows. [m k] → [m 1]"""
    return x.detach().float().square().sum(-1, keepdim=True).sqrt()


def _forth(
    x: Tensor, of_x: Tensor, weight: Tensor, of_weight: Tensor, bias: Tensor | None,
    inverse: Tensor, of_h: Tensor, outer: Tensor, of_outer: Tensor, outer_bias: Tensor | None, name: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y [m k], z = x W₁ᵀ + b₁ [m n], and hidden units by columns [n m]."""
    kind = type_on(x.device)
    z = product(x, weight.t(), of_x, of_weight.t(), kind, bias, quick=True)
    h, across = activated(z, inverse, name)
    return product(h, outer.t(), of_h, of_outer.t(), kind, outer_bias, quick=True), z, across


def _back(
    above: Tensor, of_above: Tensor, x: Tensor, weight: Tensor, of_weight: Tensor, of_columns: Tensor,
    outer: Tensor, of_outer: Tensor, top_of_outer: Tensor,
    z: Tensor, inverse: Tensor, of_z: Tensor, factors: Tensor, top: Tensor,
    h: Tensor, outer_both: Tensor, outer_top: Tensor, one: Tensor, name: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x [m k], W₁ [n k], b₁ [n], W₂ [k n] and b₂ [k]."""
    kind = type_on(above.device)
    outer, _ = turned(outer, of_outer, top_of_outer)  # [n k]
    # Scales of rows, being powers of two, are as good when the gradient of z is made: a product without is faster.
    to_h = product(above, outer.t(), one, top_of_outer, kind, quick=True)
    dz, across, to_bias = sloped(to_h, z, inverse, factors, top, of_above, name)  # [m n], [n m], [n]
    weight, _ = turned(weight, of_weight, of_columns[:, :1])  # [k n]
    to_x = product(dz, weight.t(), of_z, of_columns, kind, quick=True)
    x, _ = turned(x)  # [k m]
    to_weight = product(across, x.t(), top, one, torch.float32)
    above, to_outer_bias = turned(above, outer_both, outer_top, of_above)  # [k m], [k]
    assert to_outer_bias is not None
    return to_x, to_weight, to_bias, product(above, h.t(), outer_top, one, torch.float32), to_outer_bias


_forth_as_operator = torch.library.custom_op("qkv::float8_feed_forward", _forth, mutates_args=())
_back_as_operator = torch.library.custom_op("qkv::float8_feed_forward_backward", _back, mutates_args=())


@_forth_as_operator.register_fake
def _(
    x: Tensor, of_x: Tensor, weight: Tensor, of_weight: Tensor, bias: Tensor | None,
    inverse: Tensor, of_h: Tensor, outer: Tensor, of_outer: Tensor, outer_bias: Tensor | None, name: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    kind, rows, hidden = type_on(x.device), x.shape[0], weight.shape[0]
    z = x.new_empty(rows, hidden, dtype=kind)
    return torch.empty_like(x, dtype=kind), z, x.new_empty(hidden, rows)


@_back_as_operator.register_fake
def _(
    above: Tensor, of_above: Tensor, x: Tensor, weight: Tensor, of_weight: Tensor, of_columns: Tensor,
    outer: Tensor, of_outer: Tensor, top_of_outer: Tensor,
    z: Tensor, inverse: Tensor, of_z: Tensor, factors: Tensor, top: Tensor,
    h: Tensor, outer_both: Tensor, outer_top: Tensor, one: Tensor, name: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    to_weight, to_outer = (torch.empty_like(each, dtype=torch.float32) for each in (weight, outer))
    biases = to_weight.new_empty(weight.shape[0]), to_weight.new_empty(outer.shape[0])
    return torch.empty_like(x, dtype=type_on(x.device)), to_weight, biases[0], to_outer, biases[1]
