"""Weights of blocks in 8 bits, and how large what they make can be: all that a step knows before its first product.

What a norm makes is no longer than its gain allows, a product no larger than a row's length times a column's, and what
heads read no larger than the largest value. So every matrix of the way there has one scale, which a product takes for
nothing; all scales of a block together are two small launches. Bounds are some 8 times what need be: with an exponent
that costs nothing but the smallest numbers (`feed_forward.py`).

Shapes: k width of the stream, d that of the weights' output, which is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.parts.norm import numbers_of
from qkv.parts.programs import runs_our_own
from qkv.train.float8.activations import STEEPEST
from qkv.train.float8.feed_forward import SLACK
from qkv.train.float8.product import type_on
from qkv.train.float8.rows import both_ways, powers

APART = 4  # numbers between scales, so that each begins where programs like it


class Scale(NamedTuple):
    """One number for all of a matrix, a power of two."""

    inverse: Tensor  # []
    power: Tensor  # []


class Matrix(NamedTuple):
    """A weight [n k] in 8 bits."""

    rows: Tensor  # [n k]
    across: Tensor  # [k n]
    power: Tensor  # []


class Narrow(NamedTuple):
    """Of a block: its weights, and scales of what goes into each."""

    project: Matrix
    out: Matrix
    inner: Matrix
    outer: Matrix
    read: Scale  # by the projection: its norm
    heads: Scale
    normed: Scale  # read by the feed-forward
    hidden: Scale
    reach: Tensor  # [] how far a gradient's row of length 1 can get through the feed-forward's last product
    of_columns: Tensor  # [1 k] the power of `out` for each column: a product with scales of rows asks for that
    project_bias: Tensor | None  # of the type that products have, which add them
    inner_bias: Tensor | None


class Learned(NamedTuple):
    """All of a block that its bounds are made of."""

    weights: tuple[Tensor, Tensor, Tensor, Tensor]  # project, out, inner, outer
    values: int  # rows of the projection that make values: its last
    norms: tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]  # (gain, shift) of both
    value_bias: Tensor | None
    inner_bias: Tensor | None


@torch.no_grad()
def narrow_blocks(blocks: Sequence[tuple[Any, Any]]) -> list[Narrow]:
    """Of blocks that are one step of attention and one of an `MLP` each, with a norm before it."""
    kind = type_on(blocks[0][0].mixer.out.weight.device)
    project_biases = _of_kind([first.mixer.project.whole_bias() for first, _ in blocks], kind)
    inner_biases = _of_kind([second.mixer.inner.bias for _, second in blocks], kind)
    all_biases = zip(project_biases, inner_biases, strict=True)
    return [_narrow(_learned(*steps), *biases) for steps, biases in zip(blocks, all_biases, strict=True)]


def _learned(first: Any, second: Any) -> Learned:
    attention, mlp = first.mixer, second.mixer
    (gain, shift, *_), (second_gain, second_shift, *_) = numbers_of(first.norm), numbers_of(second.norm)
    maps = attention.project, attention.out, mlp.inner, mlp.outer
    project, out, inner, outer = (each.weight.detach() for each in maps)
    # Values are the last of the projection's maps, and their bias the last of its biases.
    value_bias = _last(attention.project.bias, attention.value_size) if "value" in attention.biases else None
    norms = (gain, shift), (second_gain, second_shift)
    return Learned((project, out, inner, outer), attention.value_size, norms, value_bias, mlp.inner.bias)


def _narrow(learned: Learned, project_bias: Tensor | None, inner_bias: Tensor | None) -> Narrow:
    if runs_our_own(learned.weights[0]):
        from qkv.train.float8 import weights_triton  # Triton comes with torch's builds for GPUs only

        made, scales, of_columns = weights_triton.narrow(learned, APART, SLACK, STEEPEST)
    else:
        made, scales, of_columns = _narrow_by_torch(learned)
    inverses, powers_of_all = scales[:, :, 0].unbind(1)  # [9] each
    pairs = [Scale(*each) for each in zip(inverses.unbind(), powers_of_all.unbind(), strict=True)]
    project, out, inner, outer = (Matrix(*both, scale.power) for both, scale in zip(made, pairs, strict=False))
    read, heads, normed, hidden, (reach, _) = pairs[4:]
    return Narrow(project, out, inner, outer, read, heads, normed, hidden, reach, of_columns, project_bias, inner_bias)


def _narrow_by_torch(learned: Learned) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """(Weights in 8 bits by rows and by columns; scales; the power of `out` for each column [1 k])

    Scales [9 2 APART] are inverses and powers: of the weights, of what is read, of heads, of what the feed-forward
    reads and of hidden units. Last is the reach, alone.
    """
    project, _, inner, outer = learned.weights
    (far, long), (far_2, long_2) = (_reaches(*norm) for norm in learned.norms)
    values = project[len(project) - learned.values :]
    heads = SLACK * (long * _longest(values, 1) + _largest(learned.value_bias, long))
    hidden = SLACK * (long_2 * _longest(inner, 1) + _largest(learned.inner_bias, long))
    reach = SLACK * STEEPEST * _longest(outer, 0)
    largest = [each.abs().amax() for each in learned.weights]
    inverse, power = powers(torch.stack([*largest, far, heads, far_2, hidden]))
    scales = torch.stack([torch.cat([inverse, reach[None]]), torch.cat([power, reach[None]])], 1)  # [9 2]
    made = [both_ways(each, one) for each, one in zip(learned.weights, inverse, strict=False)]
    return made, scales[:, :, None].repeat(1, 1, APART), power[1].expand(1, learned.weights[1].shape[1]).contiguous()


def _of_kind(biases: Sequence[Tensor | None], kind: torch.dtype) -> Sequence[Tensor | None]:
    """All of them at once."""
    there = [bias for bias in biases if bias is not None]
    return torch.cat(there).to(kind).split([len(bias) for bias in there]) if there else biases


def _reaches(gain: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """(The largest number, the longest row) that a norm can make: no normed number is further out than √k. [] []"""
    gains = gain.abs() * gain.numel() ** 0.5  # [k]
    if shift is None:
        return gains.amax(), gains.amax()
    return (gains + shift.abs()).amax(), gains.amax() + torch.linalg.vector_norm(shift)


def _longest(weight: Tensor, dim: int) -> Tensor:
    """The length of the longest row (1) or column (0). []"""
    return torch.linalg.vector_norm(weight, dim=dim).amax()


def _largest(bias: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if bias is None else bias.abs().amax()


def _last(weight: nn.Parameter, rows: int) -> Tensor:
    return weight.detach()[len(weight) - rows :]
