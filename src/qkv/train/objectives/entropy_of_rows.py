"""Cross-entropy of each row of logits, with label smoothing, and how it changes with them.

The loss is (1 - ε)·(-log p of the wanted token) + ε·(the mean of -log p over the vocabulary) [szegedy2016 §7], where p
is the softmax, computed in float32 at least; its slope is p minus the smoothed target. Rows that are not real count as
nothing, whatever they hold. On a GPU one program a row does it (`entropy_programs.py`); elsewhere slices of rows are
widened one after the other.

Shapes: n rows, r of them at one time, w columns of logits, of which those of the vocabulary come first and others count
for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.parts.precision import widened
from qkv.parts.programs import is_served

# Logits widened to float32 at one time: 256 MiB of them, whatever the batch and the vocabulary.
WIDENED_AT_ONCE = 2**26
# On a CPU so many that they stay in its caches from one operation to the next.
WIDENED_IN_CACHE = 2**20


class Targets(NamedTuple):
    """What rows should say."""

    wanted: Tensor  # [n] long: the right token
    real: Tensor  # [n] bool: the rows that count
    vocabulary: int
    smoothing: float  # ε

    def of(self, rows: slice) -> Targets:
        if _is_all(rows, self.real):
            return self
        return Targets(self.wanted[rows], self.real[rows], self.vocabulary, self.smoothing)


class Measures(NamedTuple):
    """What rows said, each in one number; losses and likelihoods are 0 where a row is not real."""

    normaliser: Tensor  # [n] log Σ exp
    losses: Tensor  # [n] smoothed cross-entropies
    likelihoods: Tensor  # [n] plain negative log-likelihoods

    @classmethod
    def empty(cls, rows: int, like: Tensor) -> Measures:
        """Room for the measures of so many rows of logits like these."""
        return cls(*like.new_empty((3, rows), dtype=wide_type(like)))

    def of(self, rows: slice) -> Measures:
        if _is_all(rows, self.losses):
            return self
        return Measures(*(each[rows] for each in self))

    def sums(self) -> tuple[Tensor, Tensor]:
        """Of the losses and of the likelihoods. [] []"""
        return self.losses.sum(), self.likelihoods.sum()


class NarrowSlopes(NamedTuple):
    """Where slopes go a second time, in 8 bits with 5 of exponent."""

    slopes: Tensor  # [n w]
    times: int  # what they are multiplied by

    def of(self, rows: slice) -> NarrowSlopes:
        return NarrowSlopes(self.slopes[rows], self.times)


def measure(logits: Tensor, targets: Targets, into: Measures) -> None:
    """Fill in the measures of logits. [n w]"""
    if _have_program(logits):
        from qkv.train.objectives import entropy_triton

        entropy_triton.measure(logits, targets, into)
        return
    for rows in _slices(logits):
        _measure(logits[rows], targets.of(rows), into.of(rows))


def differentiate(logits: Tensor, targets: Targets, normaliser: Tensor, gradient: Tensor, into: Tensor) -> None:
    """Fill in the slopes of all losses times `gradient`, as fine as `into` is. [n w], [n], [] → [n w]"""
    if _have_program(logits):
        from qkv.train.objectives import entropy_triton

        entropy_triton.differentiate(logits, targets, normaliser, gradient, into)
        return
    for rows in _slices(logits):
        _differentiate(logits[rows], targets.of(rows), normaliser[rows], into[rows], gradient)


def measure_and_differentiate(
    logits: Tensor, targets: Targets, into: Measures, narrow: NarrowSlopes | None = None
) -> None:
    """Fill in the measures, and put the slopes of the losses in the place of the logits [n w], and in 8 bits."""
    if _have_program(logits):
        from qkv.train.objectives import entropy_triton

        entropy_triton.measure_and_differentiate(logits, targets, into, narrow)
        return
    for rows in _slices(logits):
        _measure(logits[rows], targets.of(rows), into.of(rows))
        _differentiate(logits[rows], targets.of(rows), into.normaliser[rows], logits[rows])
        if narrow is not None:
            narrow.slopes[rows].copy_(logits[rows] * narrow.times)


def _measure(logits: Tensor, targets: Targets, into: Measures) -> None:
    scores = widened(logits[:, : targets.vocabulary])  # [r v]
    torch.logsumexp(scores, -1, out=into.normaliser)
    torch.sub(into.normaliser, scores.gather(-1, targets.wanted[:, None]).squeeze(-1), out=into.likelihoods)
    into.losses.copy_(into.likelihoods)
    if targets.smoothing:
        evenly = into.normaliser - scores.mean(-1)  # cross-entropy with the uniform distribution
        into.losses.mul_(1 - targets.smoothing).add_(evenly, alpha=targets.smoothing)
    # Filled, not multiplied: a padded row may hold anything, even NaN, and must still count as nothing.
    into.losses.masked_fill_(~targets.real, 0)
    into.likelihoods.masked_fill_(~targets.real, 0)


def _differentiate(
    logits: Tensor, targets: Targets, normaliser: Tensor, into: Tensor, gradient: Tensor | None = None
) -> None:
    if into.shape[1] > targets.vocabulary:
        into[:, targets.vocabulary :].zero_()
        logits, into = logits[:, : targets.vocabulary], into[:, : targets.vocabulary]  # [r v]
    wide = into if into.dtype == normaliser.dtype else torch.empty_like(into, dtype=normaliser.dtype)
    torch.sub(logits, normaliser[:, None], out=wide).exp_()
    if targets.smoothing:
        wide -= targets.smoothing / targets.vocabulary
    hit = torch.full_like(normaliser[:, None], targets.smoothing - 1)  # [r 1]
    wide.scatter_add_(-1, targets.wanted[:, None], hit)
    if gradient is not None:
        wide *= gradient
    wide.masked_fill_(~targets.real[:, None], 0)
    if wide is not into:
        into.copy_(wide)


def wide_type(x: Tensor) -> torch.dtype:
    """Of what is summed from numbers like these."""
    return torch.promote_types(x.dtype, torch.float32)


def _is_all(rows: slice, of: Tensor) -> bool:
    return rows.start == 0 and rows.stop >= len(of)


def _have_program(logits: Tensor) -> bool:
    return is_served(logits) and logits.dtype != torch.float64 and logits.stride(-1) == 1


def _slices(logits: Tensor) -> Iterator[slice]:
    at_once = WIDENED_IN_CACHE if logits.device.type == "cpu" else WIDENED_AT_ONCE
    rows = max(1, at_once // logits.shape[-1])
    for start in range(0, len(logits), rows):
        yield slice(start, start + rows)
