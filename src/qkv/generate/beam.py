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
from qkv.generate.choose import NOTHING_LEFT, likeliest, top
from qkv.generate.continuation import Continuation, FromSource
from qkv.generate.decode import PAPER_LIMIT, Hypothesis, LengthLimit, begin, forbid, greedily
from qkv.generate.history import History, Shaper, shaped
from qkv.generate.length_penalty import GooglePenalty, Penalty
from qkv.generate.line import Line
from qkv.generate.standing import standing
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.parts.precision import widened


class Beam(NamedTuple):
    """The beginning of an output, as its last token and the beam before it: beams share their common past."""

    log_probability: float
    row: int  # of the beam it continues, among its sentence's rows
    token: int
    before: Beam | None

    def ids(self) -> list[int]:
        return [beam.token for beam in self._path()]

    def log_probabilities(self) -> list[float]:
        """Of each token."""
        path = self._path()
        before = [0.0, *(beam.log_probability for beam in path)]
        return [beam.log_probability - past for beam, past in zip(path, before, strict=False)]

    def _path(self) -> list[Beam]:
        backwards, beam = [], self
        while beam.before is not None:
            backwards.append(beam)
            beam = beam.before
        return backwards[::-1]


@dataclass
class Search:
    """What one sentence's search knows: its live beams and its best whole outputs, each best first."""

    beams: int
    best: int
    ends: frozenset[int]
    limit: int
    penalty: Penalty  # that never falls with length
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
            if token not in self.ends:
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
        return self.whole[-1].score >= self.live[0].log_probability / self.penalty(self.limit)

    def _keep(self, beam: Beam, log_probability: float, *, ended: bool) -> None:
        score = log_probability / self.penalty(self.length)
        if len(self.whole) < self.best or score > self.whole[-1].score:
            parts = beam.log_probabilities()
            if ended:
                parts.append(log_probability - beam.log_probability)
            self.whole.append(Hypothesis(beam.ids(), log_probability, score, ended, parts))
            self.whole.sort(key=lambda hypothesis: -hypothesis.score)  # stable: the earlier of two equals stays ahead
            del self.whole[self.best :]


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
    shapers: Sequence[Shaper] = (),
) -> list[list[Hypothesis]]:
    """The `best` outputs of each row of source [m s], best first. The defaults are the paper's. [vaswani2017 §6.1]

    `length_penalty` is α of `penalty`: 0 ranks by log-probability alone, more favours longer outputs.
    """
    check_beams(beams, best)
    divisor = GooglePenalty(length_penalty)
    limits = begin(model, source, source_lengths, limit)
    if not limits:
        return []
    continuation = FromSource(model, source, source_lengths, start=start, most=max(limits))
    lines = [Line([start], most, frozenset([end])) for most in limits]
    return search_beams(continuation, lines, beams=beams, best=best, penalty=divisor, never=never, shapers=shapers)


@torch.inference_mode()
def search_beams(
    continuation: Continuation,
    lines: Sequence[Line],
    *,
    beams: int,
    best: int,
    penalty: Penalty,
    never: Sequence[int] = (),
    shapers: Sequence[Shaper] = (),
) -> list[list[Hypothesis]]:
    """The `best` outputs for each line, which says what stands before it, its limit and its ends. Best first.

    One beam is greedy decoding: it stops at its first end. The beams of a line share what stands before it, and a line
    leaves the batch as soon as nothing can change its answer. Shapers are shown log-probabilities, and what they make
    of them is what adds up.
    """
    check_beams(beams, best)
    if beams == 1 and not shapers:
        single = greedily(continuation, lines, never)
        return [[replace(one, score=one.log_probability / penalty(len(one.ids) + one.ended))] for one in single]
    continuation = standing(continuation, max((line.limit for line in lines), default=0))
    try:
        return _searched(continuation, lines, beams, best, penalty, never, shapers)
    finally:
        continuation.close()


def _searched(
    continuation: Continuation,
    lines: Sequence[Line],
    beams: int,
    best: int,
    penalty: Penalty,
    never: Sequence[int],
    shapers: Sequence[Shaper],
) -> list[list[Hypothesis]]:
    forbidden, device = forbid(continuation, never), continuation.device
    history = History.of_prompts([line.prompt for line in lines], device) if shapers else None
    count = beams * (1 + max(len(line.ends) for line in lines))
    root = Beam(0.0, 0, -1, None)
    searches = [Search(beams, best, line.ends, line.limit, penalty, [root]) for line in lines]
    live = searches  # those in the batch, by place
    logits = continuation.begin()  # [m v]: one beam each at first
    scores = torch.zeros(len(live), device=device)  # [m·n] log-probabilities of the beams

    while True:
        candidates = _candidates(logits, scores, len(live), count, forbidden, history, shapers)
        now = len(logits) // len(live)  # beams in the batch: one at first
        stay = [place for place, search in enumerate(live) if search.advance(zip(*candidates[place], strict=True))]
        if not stay:
            break
        sources = torch.tensor(stay, device=device) if len(stay) < len(live) else None
        rows, tokens, totals = [], [], []
        for place in stay:
            filled = live[place].live
            filled = filled + [filled[0]._replace(log_probability=-math.inf)] * (beams - len(filled))  # dead beams
            rows += [place * now + beam.row for beam in filled]
            tokens += [beam.token for beam in filled]
            totals += [beam.log_probability for beam in filled]
        if rows != list(range(len(logits))):
            chosen = torch.tensor(rows, device=device)
            continuation.select(chosen, sources)
            if history is not None:
                history.select(chosen)
        if sources is not None:
            live = [live[place] for place in stay]
        written = torch.tensor(tokens, device=device)  # [m·n]
        if history is not None:
            history.append(written)
        logits = continuation.advance(written[:, None])  # [m·n v]
        scores = torch.tensor(totals, device=device)
    if not all(search.whole for search in searches):
        raise QkvError(NOTHING_LEFT)
    return [search.whole for search in searches]


def check_beams(beams: int, best: int) -> None:
    if beams < 1 or not 1 <= best <= beams:
        raise QkvError(f"Beam search gives between 1 and {beams} outputs of {beams} beams, not {best}.")


def _candidates(
    logits: Tensor,
    scores: Tensor,
    sentences: int,
    count: int,
    forbidden: Tensor | None,
    history: History | None,
    shapers: Sequence[Shaper],
) -> list[tuple[list[float], list[int], list[int]]]:
    """The best continuations of each sentence, best first: log-probabilities, rows among its beams, tokens.

    The best of all beams are among the best of each. With e ends, (1 + e)·n of them hold n that do not end.
    """
    if history is None:
        best, tokens = likeliest(logits, count, forbidden)  # [m·n c]
    else:
        own = widened(logits).log_softmax(-1)
        if forbidden is not None:
            own.index_fill_(-1, forbidden, -torch.inf)
        best, tokens = top(shaped(own, history, shapers), count)
    each = best.shape[1]
    totals = (best + scores[:, None]).view(sentences, -1)  # [m n·c]
    totals, places = totals.topk(min(count, totals.shape[1]))  # [m c]
    tokens = tokens.view(sentences, -1).gather(1, places)
    rows = places // each
    return list(zip(totals.tolist(), rows.tolist(), tokens.tolist(), strict=True))
