"""Beam search: the n best beginnings of an output are carried on side by side, and the best whole output wins.

Shapes: m live sentences, n beams of each, v vocabulary, c candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.generate.decode import PAPER_LIMIT, Hypothesis, LengthLimit, begin, forbid, greedy, likeliest
from qkv.models.sequence_to_sequence import SequenceToSequence


def penalty(length: int, exponent: float) -> float:
    """lp(Y) = ((5 + |Y|) / 6)^α, by which a log-probability is divided [wu2016 eq.14]; |Y| counts `</s>`."""
    return ((5 + length) / 6) ** exponent


class Beam(NamedTuple):
    """The beginning of an output, as its last token and the beam before it: beams share their common past."""

    log_probability: float
    row: int  # of the beam it continues, among its sentence's rows
    token: int
    before: Beam | None

    def ids(self) -> list[int]:
        backwards, beam = [], self
        while beam.before is not None:
            backwards.append(beam.token)
            beam = beam.before
        return backwards[::-1]


@dataclass
class Search:
    """What one sentence's search knows: its live beams and its best whole outputs, each best first."""

    beams: int
    best: int
    end: int
    limit: int
    exponent: float
    live: list[Beam]
    whole: list[Hypothesis] = field(default_factory=list)
    length: int = 0

    def advance(self, candidates: Iterable[tuple[float, int, int]]) -> bool:
        """Take in (log-probability, row, token) of the best continuations, best first. False: the search is over."""
        self.length += 1
        live: list[Beam] = []
        for rank, (log_probability, row, token) in enumerate(candidates):
            if log_probability == -math.inf:
                break
            if token != self.end:
                live.append(Beam(log_probability, row, token, self.live[row]))
                if len(live) == self.beams:
                    break
            elif rank < self.beams:  # an end counts only if it is itself among the n best
                self._keep(self.live[row], log_probability, ended=True)
        self.live = live
        if self.length == self.limit:
            for beam in live:
                self._keep(beam, beam.log_probability, ended=False)
        return self.length < self.limit and bool(live) and not self._decided()

    def _decided(self) -> bool:
        """Whether no live beam can still reach the outputs kept.

        Carrying on only lowers a log-probability, and no divisor is larger than that of the limit. So this is exact:
        the search returns what it would return if it ran on to the limit.
        """
        if len(self.whole) < self.best:
            return False
        return self.whole[-1].score >= self.live[0].log_probability / penalty(self.limit, self.exponent)

    def _keep(self, beam: Beam, log_probability: float, *, ended: bool) -> None:
        score = log_probability / penalty(self.length, self.exponent)
        if len(self.whole) < self.best or score > self.whole[-1].score:
            self.whole.append(Hypothesis(beam.ids(), log_probability, score, ended))
            self.whole.sort(key=lambda hypothesis: -hypothesis.score)  # stable: the earlier of two equals stays ahead
            del self.whole[self.best :]


@torch.inference_mode()
def beam_search(
    model: SequenceToSequence,
    source: Tensor,
    source_lengths: Tensor | None = None,
    *,
    start: int,
    end: int,
    beams: int = 4,
    length_penalty: float = 0.6,
    best: int = 1,
    limit: LengthLimit = PAPER_LIMIT,
    never: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """The `best` outputs of each row of source [m s], best first. The defaults are the paper's. [vaswani2017 §6.1]

    `length_penalty` is α of `penalty`: 0 ranks by log-probability alone, more favours longer outputs. One beam is
    greedy decoding: it stops at its first end. The beams of a sentence share its memory, and a sentence leaves the
    batch as soon as nothing can change its answer.
    """
    if beams < 1 or not 1 <= best <= beams:
        raise QkvError(f"Beam search gives between 1 and {beams} outputs of {beams} beams, not {best}.")
    if not 0 <= length_penalty < math.inf:
        raise QkvError(f"The length penalty must be 0 (none) or a finite number above, but is {length_penalty}.")
    if beams == 1:
        single = greedy(model, source, source_lengths, start=start, end=end, limit=limit, never=never)
        lengths = [len(one.ids) + one.ended for one in single]
        return [
            [replace(one, score=one.log_probability / penalty(length, length_penalty))]
            for one, length in zip(single, lengths, strict=True)
        ]
    limits = begin(model, source, source_lengths, limit)
    if not limits:
        return []
    forbidden = forbid(model, never, source.device)
    memory, cache = model.encode(source, source_lengths), model.new_cache(max(limits))
    root = Beam(0.0, 0, start, None)
    searches = [Search(beams, best, end, most, length_penalty, [root]) for most in limits]
    live = searches  # those in the batch, by memory row
    target = torch.full((len(live), 1), start, device=source.device)  # [m 1]: one beam each at first
    scores = torch.zeros(len(live), device=source.device)  # [m·n] log-probabilities of the beams

    while True:
        logits = model.decode(target, memory, cache)[:, -1]  # [m·n v]
        found = _candidates(logits, scores, len(live), 2 * beams, forbidden)
        now = len(target) // len(live)  # beams in the batch: one at first
        stay = [place for place, search in enumerate(live) if search.advance(zip(*found[place], strict=True))]
        if not stay:
            return [search.whole for search in searches]
        memory_rows = torch.tensor(stay, device=source.device) if len(stay) < len(live) else None
        rows, tokens, totals = [], [], []
        for place in stay:
            filled = live[place].live
            filled = filled + [filled[0]._replace(log_probability=-math.inf)] * (beams - len(filled))  # dead beams
            rows += [place * now + beam.row for beam in filled]
            tokens += [beam.token for beam in filled]
            totals += [beam.log_probability for beam in filled]
        if rows != list(range(len(target))):
            cache.select(torch.tensor(rows, device=source.device), memory_rows)
        if memory_rows is not None:
            memory, live = memory.select(memory_rows), [live[place] for place in stay]
        target = torch.tensor(tokens, device=source.device)[:, None]  # [m·n 1]
        scores = torch.tensor(totals, device=source.device)


def _candidates(
    logits: Tensor, scores: Tensor, sentences: int, count: int, forbidden: Tensor | None
) -> list[tuple[list[float], list[int], list[int]]]:
    """The best continuations of each sentence, best first: log-probabilities, rows among its beams, tokens.

    The best of all beams are among the best of each. 2n of them hold n that do not end, since each beam has one end.
    """
    best, tokens = likeliest(logits, count, forbidden)  # [m·n c]
    each = best.shape[1]
    totals = (best + scores[:, None]).view(sentences, -1)  # [m n·c]
    totals, places = totals.topk(min(count, totals.shape[1]))  # [m c]
    tokens = tokens.view(sentences, -1).gather(1, places)
    rows = places // each
    return list(zip(totals.tolist(), rows.tolist(), tokens.tolist(), strict=True))
