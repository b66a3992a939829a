"""How a token is chosen from scores: the likeliest one, or one drawn by chance.

Shapes: r rows, v vocabulary, c candidates.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from qkv.data.doubles import doubled
from qkv.errors import QkvError
from qkv.parts import cpu_steps
from qkv.parts.precision import widened

BLOCK = 128  # tokens of the vocabulary whose maximum is taken before any order is sought

DAMAGED = "The model gives no probabilities but NaN: its weights are damaged or too large."
NOTHING_LEFT = "No token is left to choose: what is forbidden or demanded of the output rules out every one."


class Chooser(ABC):
    """Chooses a token for each row, given what shapers made of the model's logits."""

    @abstractmethod
    def distribution(self, scores: Tensor) -> Tensor:
        """The probability with which each token is chosen. [r v] → [r v]"""

    @abstractmethod
    def choose(self, scores: Tensor, chances: Sequence[Random]) -> Tensor:
        """One token a row, with the row's own source of chance. [r v] → [r]"""


class TheLikeliest(Chooser):
    def distribution(self, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores).scatter_(1, top(scores, 1)[1], 1.0)

    def choose(self, scores: Tensor, chances: Sequence[Random]) -> Tensor:
        best, tokens = top(scores, 1)
        check_possible(best)
        return tokens[:, 0]


class Drawn(Chooser):
    """A token drawn with the probability the scores give it; each row draws from its own generator."""

    def distribution(self, scores: Tensor) -> Tensor:
        check_possible(scores.amax(-1))
        return widened(scores).softmax(-1)

    def choose(self, scores: Tensor, chances: Sequence[Random]) -> Tensor:
        return draw(self.distribution(scores), [chance.random() for chance in chances])


def draw(probabilities: Tensor, points: Sequence[float]) -> Tensor:
    """The token of each row in whose share of the line from 0 to 1 the row's point lies. [r v] → [r]"""
    ends = doubled(probabilities).cumsum(-1)  # [r v]
    at = torch.tensor(points, dtype=torch.float64, device=ends.device)[:, None] * ends[:, -1:]
    return torch.searchsorted(ends, at, right=True)[:, 0].clamp(max=ends.shape[-1] - 1).to(probabilities.device)


def chance_of(seed: int, prompt: Sequence[int], number: int) -> Random:
    """A row's source of chance: it depends on nothing but the seed, the prompt and the number of the sample.

    So a prompt gets the same samples alone and in any company.
    """
    text = f"{seed} {number} {' '.join(map(str, prompt))}"
    return Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))


def check_possible(best: Tensor) -> None:
    """best: the score of each row's best token."""
    if best.isnan().any():
        raise QkvError(DAMAGED)
    if best.isneginf().any():
        raise QkvError(NOTHING_LEFT)


def likeliest(logits: Tensor, count: int, forbidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens of each row, best first, with their log-probabilities. [r v] → [r c] [r c]

    Forbidden tokens are passed over; the others keep the probability they have beside them.
    """
    wide = widened(logits)
    if cpu_steps.can_choose(wide):
        return cpu_steps.likeliest(wide, min(count, wide.shape[-1]), forbidden)
    scores = wide.log_softmax(-1)  # [r v]
    if forbidden is not None:
        scores.index_fill_(-1, forbidden, -torch.inf)
    return top(scores, count)


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest scores of each row, highest first, and where they stand. [r v] → [r c] [r c]"""
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
