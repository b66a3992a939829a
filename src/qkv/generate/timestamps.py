"""Times among the words of a transcript: which tokens may follow which, and what they tell. [radford2023 §2.3]

Shapes: r rows, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.generate.history import History
from qkv.generate.speech_tokens import SpeechTokens
from qkv.parts.precision import widened


@dataclass(frozen=True)
class TimestampRules:
    """A shaper: times come in pairs around text, begin early and never go back. [radford2023 §4.5]

    A row begins with a time; after the time that ends a stretch comes the time that begins the next, or the end. Where
    all times together are likelier than any single word, a time is written.
    """

    tokens: SpeechTokens

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        tokens, first = self.tokens, self.tokens.first_time
        scores = scores.clone()
        scores[:, tokens.no_timestamps] = -torch.inf
        for row, ids in enumerate(history.ids[:, history.prompt :].tolist()):
            times = [token for token in ids if token >= first]
            closed = len(ids) >= 1 and ids[-1] >= first  # the last token is a time
            opens = closed and (len(ids) < 2 or ids[-2] >= first)  # and it begins a stretch
            if opens:
                scores[row, first:] = -torch.inf
            elif closed:
                scores[row, : tokens.end] = -torch.inf
            if times:
                # The time that ends a stretch may be repeated by the one that begins the next; no stretch is empty.
                least = times[-1] if closed and not opens else times[-1] + 1
                scores[row, first:least] = -torch.inf
        if history.written == 0:
            scores[:, :first] = -torch.inf
            scores[:, first + tokens.latest_first + 1 :] = -torch.inf
        logs = widened(scores).log_softmax(-1)
        rather_time = logs[:, first:].logsumexp(-1) > logs[:, :first].amax(-1)  # [r]
        scores[:, :first] = scores[:, :first].masked_fill(rather_time[:, None], -torch.inf)
        return scores


@dataclass(frozen=True)
class Stretch:
    """A part of an output between two times. `begin` and `end` count steps from the start of the window."""

    begin: int
    end: int
    ids: list[int]  # with its times


def stretches(ids: Sequence[int], tokens: SpeechTokens, size: int) -> tuple[list[Stretch], int]:
    """What was said when in a window of `size` steps, and how many steps of it are done with.

    An output that ends within a stretch was cut off by the end of the window: what follows its last pair of times is
    heard again from there. One that ends with a single time has heard everything. [radford2023 §4.5]
    """
    ids, first = list(ids), tokens.first_time
    is_time = [token >= first for token in ids]
    cuts = [place for place in range(1, len(ids)) if is_time[place - 1] and is_time[place]]
    finished = is_time[-2:] == [False, True]
    if not cuts:
        times = [token - first for token in ids if token >= first]
        end = times[-1] if times and times[-1] > 0 else size
        return [Stretch(0, end, ids)], size
    if finished:
        cuts.append(len(ids))
    found = []
    for begin, end in zip([0, *cuts], cuts, strict=False):
        part = ids[begin:end]
        found.append(Stretch(part[0] - first, part[-1] - first, part))
    return found, size if finished else max(1, ids[cuts[-1] - 1] - first)
