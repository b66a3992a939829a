"""What was written so far, and what a shaper makes of scores by it; `shape.py` has those that a person asks for.

A shaper maps scores [r v] and what was written so far to scores [r v]; a token with −∞ cannot be chosen. What counts of
the history is each row's own prompt and output, never padding.

Shapes: r rows, s slots, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError


@dataclass
class History:
    """The tokens of all rows so far: prompts that end at slot `prompt`, and what was written after them."""

    ids: Tensor  # [r s]
    prompt: int = 0
    lengths: Tensor | None = None  # [r] real tokens of each prompt; the slots before them are padding. None: all are

    @classmethod
    def of_prompts(cls, prompts: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> History:
        slots = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), slots, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, slots - len(prompt) :] = torch.tensor(list(prompt), dtype=torch.long)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        return cls(ids.to(device), slots, None if int(lengths.min()) == slots else lengths.to(device))

    @property
    def written(self) -> int:
        """How many tokens follow each prompt."""
        return self.ids.shape[1] - self.prompt

    @property
    def real(self) -> Tensor:
        """[r s]"""
        if self.lengths is None:
            return torch.ones_like(self.ids, dtype=torch.bool)
        slots = torch.arange(self.ids.shape[1], device=self.ids.device)
        return slots >= self.prompt - self.lengths[:, None]

    def append(self, tokens: Tensor) -> None:
        """tokens [r]"""
        self.ids = torch.cat((self.ids, tokens[:, None]), 1)

    def select(self, rows: Tensor) -> None:
        self.ids = self.ids[rows]
        self.lengths = None if self.lengths is None else self.lengths[rows]

    def counts(self, vocabulary: int, *, of_written: bool = False) -> Tensor:
        """How often each token occurs, in all or in what was written. [r v]"""
        ids, real = (self.ids[:, self.prompt :], None) if of_written else (self.ids, self.real)
        ones = torch.ones_like(ids) if real is None else real.long()
        return torch.zeros(len(ids), vocabulary, dtype=torch.long, device=ids.device).scatter_add_(1, ids, ones)


Shaper = Callable[[Tensor, History], Tensor]


class KeepsTheLikeliest:
    """A shaper that never changes which token is the likeliest: greedy decoding has no use for it."""


def shaped(scores: Tensor, history: History, shapers: Sequence[Shaper]) -> Tensor:
    for shaper in shapers:
        scores = shaper(scores, history)
    return scores


@dataclass(frozen=True)
class Forbidden:
    """Tokens that are never written."""

    tokens: tuple[int, ...]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        wrong = [token for token in self.tokens if not 0 <= token < scores.shape[-1]]
        if wrong:
            raise QkvError(f"Token {wrong[0]} cannot be forbidden: the vocabulary has {scores.shape[-1]}.")
        return scores.index_fill(-1, torch.tensor(self.tokens, dtype=torch.long, device=scores.device), -torch.inf)


@dataclass(frozen=True)
class NotBefore:
    """Tokens that are not written before `count` others were: an end, for outputs of at least this length."""

    count: int
    tokens: tuple[int, ...]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return Forbidden(self.tokens)(scores, history) if history.written < self.count else scores
