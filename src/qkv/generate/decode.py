"""Greedy decoding and sampling for models that read a source. Also what these and beam search share.

Shapes: m sentences, s slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.generate.choose import DAMAGED, Drawn, TheLikeliest, chance_of
from qkv.generate.continuation import Continuation, FromSource, check_evaluation
from qkv.generate.history import Shaper
from qkv.generate.line import Line
from qkv.generate.write import write
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.parts.embed import check_ids


@dataclass(frozen=True)
class Hypothesis:
    """One output: its token ids without `<s>` and `</s>`, and what the model thinks of it."""

    ids: list[int]
    log_probability: float  # natural logarithm, of all tokens and of `</s>` where it was reached
    score: float  # the log-probability after length penalty: what hypotheses are ranked by
    ended: bool  # False: cut off at the length limit
    log_probabilities: list[float] = field(default_factory=list)  # of each token, and of `</s>` where it was reached

    def __post_init__(self) -> None:
        if math.isnan(self.log_probability):
            raise QkvError(DAMAGED)


@dataclass(frozen=True)
class LengthLimit:
    """At most factor · source length + constant tokens, `</s>` included."""

    factor: float
    constant: int

    def of(self, source_lengths: Sequence[int]) -> list[int]:
        limits = [int(self.factor * length) + self.constant for length in source_lengths]
        if min(limits, default=1) < 1:
            raise QkvError(
                f"A limit of {min(limits)} output tokens leaves no room to decode: raise factor or constant."
            )
        return limits


PAPER_LIMIT = LengthLimit(factor=1.0, constant=50)  # [vaswani2017 §6.1]


def greedy(
    model: SequenceToSequence,
    source: Tensor,
    source_lengths: Tensor | None = None,
    *,
    start: int,
    end: int,
    limit: LengthLimit = PAPER_LIMIT,
    never: Sequence[int] = (),
) -> list[Hypothesis]:
    """The likeliest token at every step until `</s>`, for each row of source [m s]. Tokens in `never` are not produced.

    A sentence leaves the batch as soon as it ends, so a step costs only its live rows.
    """
    limits = begin(model, source, source_lengths, limit)
    if not limits:
        return []
    continuation = FromSource(model, source, source_lengths, start=start, most=max(limits))
    return greedily(continuation, [Line([start], most, frozenset([end])) for most in limits], never)


def greedily(continuation: Continuation, lines: Sequence[Line], never: Sequence[int] = ()) -> list[Hypothesis]:
    """Each line, carried on greedily to its end."""
    for _ in write(continuation, lines, TheLikeliest(), forbidden=forbid(continuation, never)):
        pass
    return [_hypothesis(line) for line in lines]


def sample(
    model: SequenceToSequence,
    source: Tensor,
    source_lengths: Tensor | None = None,
    *,
    start: int,
    end: int,
    seed: int,
    samples: int = 1,
    shapers: Sequence[Shaper] = (),
    limit: LengthLimit = PAPER_LIMIT,
    never: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """`samples` outputs drawn for each row of source [m s]. A row gets the same ones alone and in any company."""
    limits = begin(model, source, source_lengths, limit)
    if not limits:
        return []
    lengths = [source.shape[-1]] * len(source) if source_lengths is None else source_lengths.tolist()
    texts = [row[:length] for row, length in zip(source.tolist(), lengths, strict=True)]
    lines = [
        Line([start], most, frozenset([end]), chance=chance_of(seed, text, number))
        for text, most in zip(texts, limits, strict=True)
        for number in range(samples)
    ]
    continuation = FromSource(model, source, source_lengths, start=start, most=max(limits))
    for _ in write(continuation, lines, Drawn(), shapers, forbidden=forbid(continuation, never)):
        pass
    return [[_hypothesis(line) for line in lines[first : first + samples]] for first in range(0, len(lines), samples)]


def _hypothesis(line: Line) -> Hypothesis:
    total = line.log_probability
    return Hypothesis(line.ids, total, total, line.ended == "end", line.log_probabilities)


def begin(model: SequenceToSequence, source: Tensor, source_lengths: Tensor | None, limit: LengthLimit) -> list[int]:
    """Check what decoding is given; the limit of each sentence."""
    check_evaluation(model)
    wanted, axes = ("ids [sentences slots]", 2) if model.source_vocabulary else ("frames [rows features frames]", 3)
    slots = source.shape[-1]
    if source.ndim != axes or (len(source) and not slots):
        raise QkvError(f"Decoding needs source {wanted} with a slot at least, not {list(source.shape)}.")
    if model.source_vocabulary is not None:
        check_ids(source, model.source_vocabulary)
    lengths = [slots] * len(source) if source_lengths is None else source_lengths.tolist()
    if lengths and max(lengths) > slots:
        raise QkvError(f"A row of {slots} slots cannot hold {max(lengths)} tokens: give the lengths of the rows.")
    return limit.of(lengths)


def forbid(continuation: Continuation, never: Sequence[int]) -> Tensor | None:
    """The ids of tokens that must not be produced."""
    if not never:
        return None
    ids = torch.tensor(sorted(set(never)), device=continuation.device)
    check_ids(ids, continuation.vocabulary)
    return ids
