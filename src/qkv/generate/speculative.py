"""Speculative decoding: something quick guesses a few tokens, and the model checks all of them in one pass.

What is written is what the model alone would write: token for token when decoding greedily, and with the same
probabilities when sampling. Rows are written one after another, since each accepts another number of guesses.

Shapes: n guesses, v vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.generate.choose import draw
from qkv.generate.continuation import FromPrompts
from qkv.generate.history import History, shaped
from qkv.generate.line import Line
from qkv.generate.strategy import Greedy, Job, Sampling, Strategy
from qkv.generate.write import best_of
from qkv.models.text_model import TextModel
from qkv.parts.precision import widened

Chances = Callable[[Tensor, Sequence[int]], Tensor]  # logits [1 v] after a text → the probability of each token [v]


class Guess(NamedTuple):
    token: int
    probability: Tensor  # [v] with which each token would have been guessed


class Guesser(ABC):
    """Guesses how one text goes on."""

    @abstractmethod
    def guess(self, text: Sequence[int], count: int, chances: Chances, chance: Random) -> list[Guess]:
        """At most `count` tokens after the text."""


class Draft(ABC):
    """Where guesses come from."""

    @abstractmethod
    def guesser(self, job: Job, line: Line) -> Guesser:
        """A new guesser for one line."""


@dataclass(frozen=True, eq=False)
class DraftModel(Draft):
    """A smaller model with the same vocabulary."""

    model: TextModel

    def guesser(self, job: Job, line: Line) -> Guesser:
        if self.model.vocabulary != job.model.vocabulary:
            raise QkvError(
                f"The draft model knows {self.model.vocabulary} tokens and the model {job.model.vocabulary}: they must "
                "share one vocabulary."
            )
        return _ModelGuesser(FromPrompts(self.model, [line.prompt], most=line.limit), line.ends)


class _ModelGuesser(Guesser):
    def __init__(self, rows: FromPrompts, ends: frozenset[int]) -> None:
        self._rows, self._ends, self._read = rows, ends, list[int]()

    def guess(self, text: Sequence[int], count: int, chances: Chances, chance: Random) -> list[Guess]:
        written, guesses = list(text), list[Guess]()
        while len(guesses) < count and not (guesses and guesses[-1].token in self._ends):
            probability = chances(self._logits(written), written)
            token = int(draw(probability[None], [chance.random()]))
            guesses.append(Guess(token, probability))
            written.append(token)
        return guesses

    def _logits(self, text: list[int]) -> Tensor:
        """After a text; only what it has not in common with the last one is read. [1 v]"""
        if not self._read:
            logits = self._rows.begin()
            self._read = text[: self._rows.length]
            if len(text) == len(self._read):
                return logits
        same = next((i for i, (a, b) in enumerate(zip(self._read, text, strict=False)) if a != b), len(self._read))
        same = min(same, len(text) - 1)
        self._rows.truncate(same)
        self._read = list(text)
        return self._rows.advance(torch.tensor([text[same:]], device=self._rows.device))


@dataclass(frozen=True)
class PromptLookup(Draft, Guesser):
    """What followed the last tokens where they stood before: quick where an output repeats its prompt.

    The longest run of at most `run` last tokens that occurs earlier is sought, at its latest place.
    """

    run: int = 3

    def __post_init__(self) -> None:
        if self.run < 1:
            raise QkvError(f"Prompt look-up compares 1 token at least, not {self.run}.")

    def guesser(self, job: Job, line: Line) -> Guesser:
        return self

    def guess(self, text: Sequence[int], count: int, chances: Chances, chance: Random) -> list[Guess]:
        tokens = self.found(list(text))[:count]
        return [Guess(token, torch.empty(0)) for token in tokens]

    def found(self, text: list[int]) -> list[int]:
        for run in range(min(self.run, len(text) - 1), 0, -1):
            last = text[-run:]
            for start in range(len(text) - run - 1, -1, -1):
                if text[start : start + run] == last:
                    return text[start + run :]
        return []


@dataclass(frozen=True)
class Speculative(Strategy):
    """At most `ahead` guesses at a time, checked by the model. [leviathan2023 alg.1]"""

    draft: Draft
    ahead: int = 4
    by: Greedy | Sampling = Greedy()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if self.ahead < 1:
            raise QkvError(f"Speculative decoding guesses 1 token ahead at least, not {self.ahead}.")

    @property
    def outputs(self) -> int:
        return self.by.outputs

    def chances(self, prompt: Sequence[int]) -> list[Random | None]:
        return self.by.chances(prompt)

    @torch.inference_mode()
    def write(self, job: Job) -> Iterator[None]:
        if job.slide is not None:
            raise QkvError("Speculative decoding goes back where a guess was wrong: the window cannot slide.")
        self.by.check(job.shapers)
        for line in job.lines:
            yield from self._write(job, line)

    def _write(self, job: Job, line: Line) -> Iterator[None]:
        def chances(logits: Tensor, text: Sequence[int]) -> Tensor:
            history = History(torch.tensor([list(text)], device=logits.device), prompt=len(line.prompt))
            return self.by.chooser.distribution(shaped(logits, history, job.shapers))[0]

        rows = FromPrompts(job.model, [line.prompt], most=line.limit)
        guesser = self.draft.guesser(job, line)
        logits, guesses = rows.begin(), list[Guess]()  # [1 v]
        while True:
            sure = rows.length - len(guesses)  # slots that hold no guess
            for number in range(len(guesses) + 1):
                after = logits[number : number + 1]
                wanted = chances(after, [*line.prompt, *line.ids])  # [v]
                guess = guesses[number] if number < len(guesses) else None
                token, right = checked(wanted, guess, line.chance)
                own = widened(after).log_softmax(-1)
                live = line.add(token, float(own[0, token]), best_of(own, job.alternatives)[0])
                yield
                if not live:
                    return
                if not right:
                    break
            rows.truncate(sure + number)
            text = [*line.prompt, *line.ids]
            guesses = guesser.guess(text, min(self.ahead, line.left - 1), chances, line.chance)
            new = torch.tensor([[text[-1], *(guess.token for guess in guesses)]], device=rows.device)
            logits = rows.logits(rows.states(new))[0]  # [n+1 v]


def checked(wanted: Tensor, guess: Guess | None, chance: Random) -> tuple[int, bool]:
    """The next token, of which the model wants each with a probability [v], and whether it is the guess.

    A guess x made with probability q(x) is taken with probability min(1, p(x)/q(x)); otherwise a token is drawn from
    what p has more than q. So all in all a token is drawn from p. [leviathan2023 §2.3]
    """
    if guess is None:
        return int(draw(wanted[None], [chance.random()])), False
    # A guess that was not drawn but looked up had to come: its probability is 1.
    certain = not len(guess.probability)
    made = torch.zeros_like(wanted) if certain else guess.probability
    if certain:
        made[guess.token] = 1
    if chance.random() * float(made[guess.token]) < float(wanted[guess.token]):
        return guess.token, True
    left = (wanted - made).clamp(min=0)
    return int(draw((left if float(left.sum()) else wanted)[None], [chance.random()])), False
