"""Greedy decoding: at every step the likeliest token. Also what all decoding shares: hypotheses and length limits.

Shapes: m live sentences, v vocabulary, r rows, c candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.parts.embed import check_ids
from qkv.parts.precision import widened


@dataclass(frozen=True)
class Hypothesis:
    """One output: its token ids without `<s>` and `</s>`, and what the model thinks of it."""

    ids: list[int]
    log_probability: float  # natural logarithm, of all tokens and of `</s>` where it was reached
    score: float  # the log-probability after length penalty: what hypotheses are ranked by
    ended: bool  # False: cut off at the length limit

    def __post_init__(self) -> None:
        if math.isnan(self.log_probability):
            raise QkvError("The model gives no probabilities but NaN: its weights are damaged or too large.")


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


BLOCK = 128  # tokens of the vocabulary whose maximum is taken before any order is sought
PAPER_LIMIT = LengthLimit(factor=1.0, constant=50)  # [vaswani2017 §6.1]


@torch.inference_mode()
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
    forbidden = forbid(model, never, source.device)
    memory, cache = model.encode(source, source_lengths), model.new_cache(max(limits))
    written: list[list[int]] = [[] for _ in limits]
    results: list[Hypothesis | None] = [None] * len(limits)
    live = list(range(len(limits)))  # the sentences in the batch, by row
    target = torch.full((len(live), 1), start, device=source.device)  # [m 1]
    total = torch.zeros(len(live), device=source.device)  # [m] log-probability so far

    while live:
        best, tokens = likeliest(model.decode(target, memory, cache)[:, -1], 1, forbidden)  # [m 1]
        total = total + best[:, 0]
        stay, chosen = [], tokens[:, 0].tolist()
        for row, (sentence, token) in enumerate(zip(live, chosen, strict=True)):
            ended = token == end
            if not ended:
                written[sentence].append(token)
            if ended or len(written[sentence]) == limits[sentence]:
                log_probability = total[row].item()
                results[sentence] = Hypothesis(written[sentence], log_probability, log_probability, ended)
            else:
                stay.append(row)
        if len(stay) < len(live):
            live = [live[row] for row in stay]
            if live:
                rows = torch.tensor(stay, device=source.device)
                tokens, total, memory = tokens[rows], total[rows], memory.select(rows)
                cache.select(rows, rows)
        target = tokens
    return [result for result in results if result is not None]


def likeliest(logits: Tensor, count: int, forbidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens of each row, best first, with their log-probabilities. [r v] → [r c] [r c]

    Forbidden tokens are passed over; the others keep the probability they have beside them.
    """
    scores = widened(logits).log_softmax(-1)  # [r v]
    if forbidden is not None:
        scores.index_fill_(-1, forbidden, -torch.inf)
    vocabulary = scores.shape[-1]
    count = min(count, vocabulary)
    blocks = vocabulary // BLOCK
    if blocks <= 4 * count:
        best = scores.topk(count)
        return best.values, best.indices
    # The best c tokens lie in the c blocks with the best maxima, or in the rest that fills no block. A maximum is found
    # many times faster than an order, so only those blocks are put in order.
    maxima = scores[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)).amax(-1)  # [r blocks]
    within = torch.arange(BLOCK, device=scores.device)
    places = (maxima.topk(count).indices[:, :, None] * BLOCK + within).flatten(1)  # [r c·BLOCK]
    rest = torch.arange(blocks * BLOCK, vocabulary, device=scores.device).expand(len(scores), -1)
    places = torch.cat((places, rest), 1)
    best = scores.gather(1, places).topk(count)
    return best.values, places.gather(1, best.indices)


def begin(model: SequenceToSequence, source: Tensor, source_lengths: Tensor | None, limit: LengthLimit) -> list[int]:
    """Check what decoding is given; the limit of each sentence."""
    if model.training:
        raise QkvError("Decoding needs a model without dropout: call model.eval() first.")
    if source.ndim != 2 or (len(source) and not source.shape[1]):
        raise QkvError(f"Decoding needs source ids [sentences slots] with a slot at least, not {list(source.shape)}.")
    check_ids(source, model.source_vocabulary)
    lengths = [source.shape[1]] * len(source) if source_lengths is None else source_lengths.tolist()
    if lengths and max(lengths) > source.shape[1]:
        raise QkvError(
            f"A row of {source.shape[1]} slots cannot hold {max(lengths)} tokens: give the lengths of the rows."
        )
    return limit.of(lengths)


def forbid(model: SequenceToSequence, never: Sequence[int], device: torch.device) -> Tensor | None:
    """The ids of tokens that must not be produced."""
    if not never:
        return None
    ids = torch.tensor(sorted(set(never)), device=device)
    check_ids(ids, model.target_vocabulary)
    return ids
