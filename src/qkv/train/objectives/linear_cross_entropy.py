"""Cross-entropy of logits that are a product, states times a matrix of the vocabulary: the product is made but once.

Some rows at a time: their logits, their losses, the slopes of these in the place of the logits, and from them at once
what the states, the matrix and the bias contribute to the gradient. So logits never exist all together, are never made
again, and the way back has but to multiply three gradients by a number. Where blocks multiply in 8 bits, so do slopes
for the states' gradient, which goes into these blocks; the loss and what the matrix learns from it stay as they are.

Shapes: n rows, r of them at one time, d width of a state, v vocabulary, w the same filled up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.parts.heads import LogitFactors
from qkv.parts.learned_map import map_into
from qkv.parts.precision import narrowed, without_autocast
from qkv.train.float8.product import product_into
from qkv.train.float8.rows import both_ways, powers
from qkv.train.objectives.entropy_of_rows import (
    Measures,
    NarrowSlopes,
    Targets,
    measure,
    measure_and_differentiate,
    wide_type,
)

# Bytes of logits that exist at one time. A GPU wants products of many thousands of rows, whose gradients are narrow: a
# few tiles leave some of its processors idle. A CPU is content with some hundred rows.
ROOM_ON_GPU = 2**31
ROOM_ON_CPU = 2**28
# A GPU's fastest products and programs want rows that begin at multiples of so many numbers,
ALIGNED = 16
# and many rows in multiples of this.
TILE = 64
# Slopes are within (-1, 1). Times this they lie in the range of 8 bits with 5 of exponent, down to 2⁻²⁹ with all bits.
NARROW_TIMES = 2**15

Needs = tuple[bool, bool, bool]  # of whom a gradient is wanted: states, matrix, bias


def linear_cross_entropy(
    factors: LogitFactors, wanted: Tensor, real: Tensor, smoothing: float, in_eight_bits: bool = False
) -> tuple[Tensor, Tensor]:
    """`smoothed_cross_entropy` of the factors' product, at the precision in which autocast would compute it.

    The stream is [n d], wanted and real [n]. `in_eight_bits`: so is the product that makes its gradient, where it fits.
    """
    targets = Targets(wanted, real, len(factors.matrix), smoothing)
    if torch.is_grad_enabled():
        return _LinearCrossEntropy.apply(*factors, targets, in_eight_bits and factors.matrix.shape[1] % ALIGNED == 0)
    measures, _ = _pass(factors, targets, (False, False, False))
    return measures.sums()


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes gradients on the way forward, as if that of the loss were 1."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None, targets: Targets, in_eight_bits: bool
    ) -> tuple[Tensor, Tensor]:
        measures, slopes = _pass(LogitFactors(x, matrix, bias), targets, ctx.needs_input_grad[:3], in_eight_bits)
        ctx.save_for_backward(*slopes)
        ctx.types = x.dtype, matrix.dtype, None if bias is None else bias.dtype
        total, likelihood = measures.sums()
        ctx.mark_non_differentiable(likelihood)
        return total, likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        there = [slope for slope in ctx.saved_tensors if slope is not None]
        scaled = iter(torch._foreach_mul(there, gradient))  # at once, which a GPU does faster than one by one
        slopes = zip(ctx.saved_tensors, ctx.types, strict=True)
        return *((None if slope is None else next(scaled).to(kind)) for slope, kind in slopes), None, None


def _pass(
    factors: LogitFactors, targets: Targets, needs: Needs, in_eight_bits: bool = False
) -> tuple[Measures, list[Tensor | None]]:
    """What all rows say, and the slopes of the summed loss with x, matrix and bias, where they are needed."""
    # A state that does not count may be anything, even NaN, which a product with a slope of 0 would not make 0.
    x = _without_others(narrowed(factors.x), targets.real)  # [n d]
    matrix = _filled_up(factors.matrix, x.dtype)  # [w d]
    bias = None if factors.bias is None else _filled_up(factors.bias, x.dtype)  # [w]
    measures = Measures.empty(len(x), x)
    of_x = torch.empty_like(factors.x) if needs[0] else None  # [n d]
    of_matrix = torch.empty_like(matrix, dtype=wide_type(factors.matrix)) if needs[1] else None  # [w d]
    of_bias = None if bias is None or not needs[2] else torch.zeros_like(bias, dtype=wide_type(bias))
    each = rows_at_once(len(x), len(matrix) * x.element_size(), x.device)
    room = x.new_empty(each, len(matrix))
    to_states = _ToStates.of(matrix, each) if in_eight_bits and needs[0] else None
    with without_autocast(x):
        for start in range(0, len(x), len(room)):
            rows = slice(start, min(start + len(room), len(x)))
            logits = room[: rows.stop - rows.start]  # [r w]
            map_into(logits, x[rows], matrix, bias)
            if not any(needs):
                measure(logits, targets.of(rows), measures.of(rows))
                continue
            narrow = None if to_states is None else to_states.slopes.of(slice(len(logits)))
            measure_and_differentiate(logits, targets.of(rows), measures.of(rows), narrow)
            if of_x is not None and to_states is not None:
                to_states.fill(of_x[rows])
            elif of_x is not None:
                _add_product(of_x[rows], logits, matrix, beta=0)
            if of_matrix is not None:
                _add_product(of_matrix, logits.T, x[rows], beta=min(start, 1))
            if of_bias is not None:
                of_bias += logits.sum(0, dtype=of_bias.dtype)
    if of_matrix is not None and not len(x):
        of_matrix.zero_()
    slopes = [of_x, *(None if each is None else each[: targets.vocabulary] for each in (of_matrix, of_bias))]
    return measures, slopes


class _ToStates(NamedTuple):
    """The product of slopes and the matrix in 8 bits.

    Sums are of all the vocabulary, of which many numbers are small: they are kept wide.
    """

    slopes: NarrowSlopes
    across: Tensor  # [d w]
    powers: tuple[Tensor, Tensor]  # of slopes and matrix, [] each

    @classmethod
    def of(cls, matrix: Tensor, rows: int) -> _ToStates:
        slopes = matrix.new_empty(rows, len(matrix), dtype=torch.float8_e5m2)
        inverse, power = powers(torch.linalg.vector_norm(matrix, float("inf"), dtype=torch.float32))
        _, across = both_ways(matrix, inverse)
        return cls(NarrowSlopes(slopes, NARROW_TIMES), across, (torch.full_like(power, 1 / NARROW_TIMES), power))

    def fill(self, of_x: Tensor) -> None:
        product_into(of_x, self.slopes.slopes[: len(of_x)], self.across.t(), *self.powers)


def rows_at_once(rows: int, bytes_of_one: int, device: torch.device) -> int:
    """As many as there is room for, and as many in each of several turns."""
    room = ROOM_ON_GPU if device.type == "cuda" else ROOM_ON_CPU
    turns = max(1, -(-rows * bytes_of_one // room))
    each = -(-rows // turns)
    return max(1, min(rows, -(-each // TILE) * TILE if each > TILE else each))


def _without_others(x: Tensor, real: Tensor) -> Tensor:
    """x [n d] with zeros in rows that are not real; eight bytes at a time, which a GPU moves as fast as two."""
    several = 8 // x.element_size()
    whole = x.is_contiguous() and not x.shape[1] % several and not x.storage_offset() % several
    moved = x.view(torch.int64) if whole else x
    return moved.masked_fill(~real[:, None], 0).view(x.dtype)


def _filled_up(of_vocabulary: Tensor, dtype: torch.dtype) -> Tensor:
    """A matrix or a bias in another type, with rows of 0 behind it where a GPU wants more. [v …] → [w …]"""
    vocabulary = len(of_vocabulary)
    filling = -vocabulary % ALIGNED if of_vocabulary.is_cuda else 0
    if not filling:
        return of_vocabulary.to(dtype)
    filled = of_vocabulary.new_empty((vocabulary + filling, *of_vocabulary.shape[1:]), dtype=dtype)
    filled[:vocabulary].copy_(of_vocabulary)
    filled[vocabulary:].zero_()
    return filled


def _add_product(into: Tensor, a: Tensor, b: Tensor, beta: int = 1) -> None:
    """into ← beta·into + a b, summed in numbers as wide as those of `into`. [m n], [m k], [k n]"""
    if into.dtype == a.dtype:
        torch.addmm(into, a, b, beta=beta, out=into)
    elif into.is_cuda:
        torch.addmm(into, a, b, out_dtype=into.dtype, beta=beta, out=into)
    elif beta:
        into.add_(torch.mm(a, b))
    else:
        into.copy_(torch.mm(a, b))
