"""Weights of blocks in 8 bits, and how large what they make can be: all that a step knows before its first product.

What a norm makes is no longer than its gain allows, a product no larger than a row's length times a column's, and what
heads read no larger than the largest value. So every matrix of the way there has one scale, which a product takes for
nothing; all scales of a step together are a few small launches. Bounds are some 8 times what need be: with an exponent
that costs nothing but the smallest numbers (`float8_feed_forward.py`).

Shapes: l blocks, k width of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.parts.sum_norm import numbers_of
from qkv.train.float8_activations import STEEPEST
from qkv.train.float8_feed_forward import SLACK
from qkv.train.float8_product import type_on
from qkv.train.float8_rows import both_ways, powers

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
    project_bias: Tensor | None  # of the type that products have, which add them
    inner_bias: Tensor | None
    of_columns: Tensor  # [1 k] the power of `out` for each column: a product with scales of rows asks for that


@torch.no_grad()
def narrow_blocks(blocks: Sequence[tuple[Any, Any]]) -> list[Narrow]:
    """Of blocks that are one step of attention and one of an `MLP` each, with a norm before it."""
    maps = [
        each for first, second in blocks
        for each in (first.mixer.project, first.mixer.out, second.mixer.inner, second.mixer.outer)
    ]  # fmt: skip
    weights = [each.weight.detach() for each in maps]
    inverses, scales = _apart(torch.stack(torch._foreach_norm(weights, float("inf"))))
    found = [
        Matrix(*both_ways(weight, inverse), power)
        for weight, inverse, power in zip(weights, inverses, scales, strict=True)
    ]
    far, long = _reaches([first.norm for first, _ in blocks])  # [l] each
    far_2, long_2 = _reaches([second.norm for _, second in blocks])
    values = [_last(first.mixer.project.weight, first.mixer.value_size) for first, _ in blocks]
    heads = SLACK * (long * _longest(values, 1) + _largest([_value_bias(first.mixer) for first, _ in blocks], long))
    hidden = SLACK * (
        long_2 * _longest([second.mixer.inner.weight for _, second in blocks], 1)
        + _largest([second.mixer.inner.bias for _, second in blocks], long)
    )
    reach = SLACK * STEEPEST * _longest([second.mixer.outer.weight for _, second in blocks], 0)
    of_all, powers_of_all = _apart(torch.cat([far, heads, far_2, hidden]))
    several = len(blocks)
    pairs = [Scale(inverse, power) for inverse, power in zip(of_all, powers_of_all, strict=True)]
    reaches = reach[:, None].repeat(1, APART)[:, 0].unbind()
    kind = type_on(weights[0].device)
    project_biases = _of_kind([first.mixer.project.whole_bias() for first, _ in blocks], kind)
    inner_biases = _of_kind([second.mixer.inner.bias for _, second in blocks], kind)
    of_outs = torch.stack([each.power for each in found[1::4]])[:, None, None].expand(-1, 1, found[1].rows.shape[1])
    rest = zip(reaches, project_biases, inner_biases, of_outs.contiguous().unbind(), strict=True)
    return [
        _narrow(found[4 * n : 4 * n + 4], pairs[n::several], *given) for n, given in enumerate(rest)
    ]  # fmt: skip


def _narrow(matrices: Sequence[Matrix], scales: Sequence[Scale], *rest: Any) -> Narrow:
    project, out, inner, outer = matrices
    read, heads, normed, hidden = scales
    return Narrow(project, out, inner, outer, read, heads, normed, hidden, *rest)


def _of_kind(biases: Sequence[Tensor | None], kind: torch.dtype) -> Sequence[Tensor | None]:
    """All of them at once."""
    there = [bias for bias in biases if bias is not None]
    return torch.cat(there).to(kind).split([len(bias) for bias in there]) if there else biases


def _apart(largest: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Inverses and powers for each of these numbers."""
    inverse, power = powers(largest[:, None].repeat(1, APART))
    return inverse[:, 0].unbind(), power[:, 0].unbind()


def _reaches(norms: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """(The largest number, the longest row) that each can make: no normed number is further out than √k. [l] [l]"""
    numbers = [numbers_of(norm) for norm in norms]
    gains = torch.stack([gain for gain, *_ in numbers]).abs() * numbers[0][0].numel() ** 0.5  # [l k]
    if any(shift is None for _, shift, *_ in numbers):
        return gains.amax(1), gains.amax(1)
    shifts = torch.stack([shift for _, shift, *_ in numbers if shift is not None])
    return (gains + shifts.abs()).amax(1), gains.amax(1) + torch.linalg.vector_norm(shifts, dim=1)


def _longest(weights: Sequence[Tensor], dim: int) -> Tensor:
    """The length of the longest row (1) or column (0) of each. [l]"""
    return torch.stack([torch.linalg.vector_norm(weight, dim=dim) for weight in weights]).amax(1)


def _largest(biases: Sequence[Tensor | None], none: Tensor) -> Tensor:
    """Of each bias. [l]"""
    there = [bias for bias in biases if bias is not None]
    return torch.stack(torch._foreach_norm(there, float("inf"))) if there else torch.zeros_like(none)


def _value_bias(mixer: Any) -> Tensor | None:
    """Values are the last of the projection's maps, and their bias the last of its biases."""
    return _last(mixer.project.bias, mixer.value_size) if "value" in mixer.biases else None


def _last(weight: nn.Parameter, rows: int) -> Tensor:
    return weight.detach()[len(weight) - rows :]
