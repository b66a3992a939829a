"""A stack whose products are in 8 bits, from one attention to the next as one function.

Between two attentions there are four products, two norms and an activation, all of which are known: what each makes is
rounded where it is made, in the layouts that the products of both ways want, and nothing wide is written but the stream
itself and what the activation is taken of. Gradients go from product to product the same way. A part at a time they
could not: torch hands a gradient on in the type of what it is the gradient of.

Shapes: b rows, s slots, m = b s, d width of the stream, n hidden units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.parts.context import Context
from qkv.parts.feedforward import programmed_name
from qkv.parts.norm import numbers_of
from qkv.parts.sum_norm import made_there
from qkv.train.float8.activations import activated, sloped
from qkv.train.float8.bounds import Narrow, narrow_blocks
from qkv.train.float8.norms import sum_norm_rounded, sum_norm_rounded_back, sum_norm_times_back
from qkv.train.float8.product import product, type_on
from qkv.train.float8.rows import both_ways, rounded_side_by_side, turned

Steps = tuple[Any, Any]  # of a block: attention and a feed-forward, each with its norm


class Stretch(NamedTuple):
    """What lies between two attentions: the rest of a block, where there is one, and the first norm of the next."""

    block: Narrow | None
    next: Narrow | None  # none after the last block, whose sum and norm leave the stack wide
    activation: str
    norms: tuple[tuple[float, bool], tuple[float, bool]]  # (epsilon, whether no mean is taken off)
    sizes: tuple[int, ...]  # of queries, keys and values
    ones: Tensor  # [m 1]


def float8_stream(blocks: Sequence[Steps], norm: Any, x: Tensor, ctx: Context) -> Tensor:
    """norm(all blocks of x). [b s d] → [b s d]"""
    narrow = narrow_blocks(blocks)
    first, ones = blocks[0][0], torch.ones(x.shape[:-1].numel(), 1, device=x.device)
    x, *maps = _between(x, None, None, None, first.norm, narrow[0], first.mixer, ones)
    for number, steps in enumerate(blocks):
        heads = steps[0].mixer.hidden_of_maps(tuple(maps), ctx)  # [b s d]
        if number + 1 < len(blocks):
            after = blocks[number + 1][0]
            x, *maps = _between(x, heads, steps, narrow[number], after.norm, narrow[number + 1], after.mixer, ones)
        else:
            _, x = _between(x, heads, steps, narrow[number], norm, None, None, ones)
    return x


def _between(
    x: Tensor, heads: Tensor | None, steps: Steps | None, block: Narrow | None, norm: Any, after: Narrow | None,
    mixer: Any, ones: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The stream, and queries, keys and values of the next block, or after the last one the norm."""
    weights: list[Tensor | None] = [None] * 8
    activation, first = "", [0.0, False]
    if steps is not None:
        attention, mlp = steps
        gain, shift, *first = numbers_of(mlp.norm)
        out, inner, outer = attention.mixer.out, mlp.mixer.inner, mlp.mixer.outer
        weights = [out.weight, out.bias, gain, shift, inner.weight, inner.bias, outer.weight, outer.bias]
        activation = programmed_name(mlp.mixer.activation) or ""
    gain, shift, epsilon, rms = numbers_of(norm)
    maps = (None, None) if mixer is None else (mixer.project.matrix(), mixer.project.whole_bias())
    sizes = () if mixer is None else tuple(mixer.project.outputs.values())
    stretch = Stretch(block, after, activation, ((first[0], bool(first[1])), (epsilon, rms)), sizes, ones)
    found = _Between.apply(
        stretch, x.flatten(0, -2), None if heads is None else heads.flatten(0, -2), *weights, gain, shift, *maps
    )
    return tuple([each.unflatten(0, x.shape[:-1]) for each in found])


class _Between(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, stretch: Stretch, x: Tensor, heads: Tensor | None, out: Tensor, out_bias: Tensor | None,
        gain: Tensor, shift: Tensor | None, inner: Tensor, inner_bias: Tensor | None, outer: Tensor,
        outer_bias: Tensor | None, next_gain: Tensor, next_shift: Tensor | None, project: Tensor,
        project_bias: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.set_materialize_grads(False)  # the last sum leaves nowhere
        ctx.stretch = stretch
        block, after, kind = stretch.block, stretch.next, type_on(x.device)
        x, added = x.contiguous(), None
        held: list[Tensor | None] = [None] * 7
        if block is not None and heads is not None:
            narrow_heads, heads_across = both_ways(heads, block.heads.inverse)
            added = product(narrow_heads, block.out.rows.t(), block.heads.power, block.out.power, kind, quick=True)
            x, normed, statistics = sum_norm_rounded(
                x, added, out_bias, gain, shift, *stretch.norms[0], block.normed.inverse
            )
            z = product(
                normed, block.inner.rows.t(), block.normed.power, block.inner.power, kind, block.inner_bias, True
            )
            h, h_across = activated(z, block.hidden.inverse, stretch.activation)
            added = product(h, block.outer.rows.t(), block.hidden.power, block.outer.power, kind, quick=True)
            held = [heads_across, x, statistics, gain, normed, z, h_across]
        of_next = (next_gain, next_shift, *stretch.norms[1])
        if after is None:
            total, y, statistics = made_there(x, added, outer_bias, *of_next, x.dtype)
            ctx.save_for_backward(*held, total, statistics, next_gain, None)
            return total, y
        total, read, statistics = sum_norm_rounded(x, added, outer_bias, *of_next, after.read.inverse)
        ctx.save_for_backward(*held, total, statistics, next_gain, read)
        sizes = stretch.sizes
        bias = after.project_bias
        biases = [None] * len(sizes) if bias is None else bias.split(sizes)
        maps = [
            product(read, rows.t(), after.read.power, after.project.power, kind, own, quick=True)
            for rows, own in zip(after.project.rows.split(sizes), biases, strict=True)
        ]
        return total, *maps

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: Tensor | None, *above: Tensor) -> tuple[Tensor | None, ...]:
        found = _gradients(ctx.stretch, of_total, above, *ctx.saved_tensors)
        return tuple([each if wanted else None for each, wanted in zip(found, ctx.needs_input_grad, strict=True)])


def _gradients(
    stretch: Stretch, of_total: Tensor | None, above: Sequence[Tensor], heads_across: Tensor, x: Tensor, first: Tensor,
    gain: Tensor, normed: Tensor, z: Tensor, h_across: Tensor, total: Tensor, statistics: Tensor, next_gain: Tensor,
    read: Tensor,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Of all that `_Between` is given, from its end to its beginning."""
    block, after, ((_, rms), (_, next_rms)) = stretch.block, stretch.next, stretch.norms
    factors = to_project = to_project_bias = None
    if after is None:
        (of_y,) = above
    else:
        of_y, factors, to_project, to_project_bias = _maps_back(above, read, after, stretch.ones)
    if block is None:
        assert factors is not None  # a block comes next
        of_x, sums = sum_norm_times_back(of_total, of_y, factors, total, statistics, next_gain, next_rms)
        return None, of_x, *[None] * 9, sums[0], sums[1], to_project, to_project_bias
    of_x, narrow, next_sums, scales, tops = sum_norm_rounded_back(
        of_total, of_y, factors, total, statistics, next_gain, next_rms, block.reach
    )
    of_y, to_inner, to_inner_bias, to_outer = _feed_forward_back(
        narrow, scales, tops, normed, z, h_across, block, stretch.activation, stretch.ones[0]
    )
    of_x, narrow, sums, (power, *_), (top, _) = sum_norm_rounded_back(
        of_x, of_y, scales[1], x, first, gain, rms, block.reach
    )
    to_heads = product(narrow, block.out.across.t(), power, block.of_columns, type_on(x.device), quick=True)
    across, _ = turned(narrow, power, top)
    to_out = product(across, heads_across.t(), top, block.heads.power, torch.float32)
    return (
        None, of_x, to_heads, to_out, sums[2], sums[0], sums[1], to_inner, to_inner_bias, to_outer, next_sums[2],
        next_sums[0], next_sums[1], to_project, to_project_bias,
    )  # fmt: skip


# Scales of rows, being powers of two, are as good taken by whoever reads a product: one without is faster.


def _maps_back(
    above: Sequence[Tensor], read: Tensor, after: Narrow, ones: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradient of what the maps read [m d], factors of its rows [m 1], and gradients of weight and bias."""
    narrow, power, _, top = rounded_side_by_side(above, ones)
    to_read = product(narrow, after.project.across.t(), ones[0], after.project.power, type_on(read.device), quick=True)
    across, sums = turned(narrow, power, top, power)
    read_across, _ = turned(read)
    return to_read, power, product(across, read_across.t(), top, after.read.power, torch.float32), sums


def _feed_forward_back(
    above: Tensor, scales: Tensor, tops: Tensor, normed: Tensor, z: Tensor, h_across: Tensor, block: Narrow,
    activation: str, one: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of what it reads [m d], whose rows are still to be taken times the second of the scales, of W₁ [n d],
    of its bias and of W₂ [d n], by that of what it makes.
    """
    kind, (power, _, ratio), (top, top_of_z) = type_on(z.device), scales, tops  # [m 1] each, [] each
    to_h = product(above, block.outer.across.t(), one, block.outer.power, kind, quick=True)
    dz, across, to_bias = sloped(to_h, z, ratio, power, top_of_z, power, activation)
    to_read = product(dz, block.inner.across.t(), one, block.inner.power, kind, quick=True)
    normed_across, _ = turned(normed)
    to_inner = product(across, normed_across.t(), top_of_z, block.normed.power, torch.float32)
    above_across, _ = turned(above, power, top)
    return to_read, to_inner, to_bias, product(above_across, h_across.t(), top, block.hidden.power, torch.float32)
