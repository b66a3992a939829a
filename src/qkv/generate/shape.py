"""What is done to scores before a token is chosen from them: small values, applied in the order they are given.

Shapes: r rows, s slots, v vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.generate.history import History, KeepsTheLikeliest


@dataclass(frozen=True)
class Temperature(KeepsTheLikeliest):
    """Scores divided by a number: below 1 the likely becomes likelier, above 1 less so."""

    value: float

    def __post_init__(self) -> None:
        if not 0 < self.value < math.inf:
            raise QkvError(f"A temperature must be a number above 0, but is {self.value}; for 0 decode greedily.")

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return scores / self.value


@dataclass(frozen=True)
class TopK(KeepsTheLikeliest):
    """The `count` likeliest tokens, and any that are as likely as the last of them. [fan2018]"""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise QkvError(f"Top-k keeps 1 token at least, not {self.count}.")

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        least = scores.topk(min(self.count, scores.shape[-1])).values[:, -1:]  # [r 1]
        return scores.masked_fill(scores < least, -torch.inf)


@dataclass(frozen=True)
class TopP(KeepsTheLikeliest):
    """The fewest tokens that together have this probability: the nucleus. [holtzman2020 §3.1]"""

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise QkvError(f"Top-p keeps a probability above 0 and up to 1, not {self.mass}.")

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        rising, order = scores.sort(-1)  # from the unlikeliest on: what is dropped has a mass of 1 − p at most
        dropped = rising.softmax(-1).cumsum(-1) <= 1 - self.mass  # [r v]
        dropped[:, -1] = False
        return scores.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)


@dataclass(frozen=True)
class MinP(KeepsTheLikeliest):
    """Tokens at least `share` times as probable as the likeliest. [nguyen2025]"""

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise QkvError(f"Min-p is a share from 0 to 1 of the likeliest token's probability, not {self.share}.")

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        probabilities = scores.softmax(-1)
        best = probabilities.amax(-1, keepdim=True)
        return scores.masked_fill(probabilities < self.share * best, -torch.inf)


@dataclass(frozen=True)
class Typical:
    """The tokens whose surprise is nearest to the expected one, up to this probability together. [meister2023]"""

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass < 1:
            raise QkvError(f"Typical sampling keeps a probability between 0 and 1, not {self.mass}.")

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        logs = scores.log_softmax(-1)
        entropy = -(logs * logs.exp()).nansum(-1, keepdim=True)  # an impossible token adds nothing
        distance, order = (-logs - entropy).abs().sort(-1)  # [r v]
        mass = scores.gather(-1, order).softmax(-1).cumsum(-1)
        last = (mass < self.mass).sum(-1, keepdim=True).clamp(max=scores.shape[-1] - 1)  # [r 1]
        dropped = distance > distance.gather(1, last)
        dropped[:, 0] = False
        return scores.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Scores of tokens in prompt or output divided by `factor`, or times it where below 0. [keskar2019 §4.1]

    DIFFERS [keskar2019 §4.1]: the paper divides all scores, which would favour a repeated token with a score below 0.
    """

    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise QkvError(f"A repetition penalty is a factor above 0 (1: none), not {self.factor}.")

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        seen = history.counts(scores.shape[-1]) > 0
        penalised = torch.where(scores < 0, scores * self.factor, scores / self.factor)
        return torch.where(seen, penalised, scores)


@dataclass(frozen=True)
class FrequencyPenalty:
    """A token's score less `amount` for each time it was written; the prompt does not count."""

    amount: float

    def __post_init__(self) -> None:
        check_amount(self.amount)

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return scores - self.amount * history.counts(scores.shape[-1], of_written=True)


@dataclass(frozen=True)
class PresencePenalty:
    """A token's score less `amount` if it was written at all; the prompt does not count."""

    amount: float

    def __post_init__(self) -> None:
        check_amount(self.amount)

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return scores - self.amount * (history.counts(scores.shape[-1], of_written=True) > 0)


def check_amount(amount: float) -> None:
    if not math.isfinite(amount):
        raise QkvError(f"A penalty for what was written is a finite number, not {amount}.")


@dataclass(frozen=True)
class NoRepeat:
    """No run of `size` tokens occurs twice, prompt and output taken together. [paulus2018 §2.5]"""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise QkvError(f"Runs that may not repeat have 1 token at least, not {self.size}.")

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ids, real = history.ids, history.real
        if ids.shape[1] < self.size:
            return scores
        runs = ids.unfold(1, self.size, 1)  # [r runs size]
        begun = ids[:, ids.shape[1] - self.size + 1 :]  # [r size-1] what the next token would complete
        again = (runs[..., :-1] == begun[:, None]).all(-1) & real[:, : runs.shape[1]]  # [r runs]
        if self.size > 1:
            again &= real[:, ids.shape[1] - self.size + 1, None]
        banned = torch.zeros_like(scores).scatter_add_(1, runs[..., -1], again.to(scores.dtype)) > 0
        return scores.masked_fill(banned, -torch.inf)
