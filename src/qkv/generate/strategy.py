"""The ways to write with a language model, each as a value: what a person chooses, and how it fills its lines.

Shapes: r rows, k candidates, s slots, d width, v vocabulary.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from qkv.errors import QkvError
from qkv.generate.choose import Chooser, Drawn, TheLikeliest, chance_of
from qkv.generate.continuation import FromPrompts, Slide
from qkv.generate.history import KeepsTheLikeliest, Shaper
from qkv.generate.length_penalty import Penalty, PowerPenalty
from qkv.generate.line import Line
from qkv.generate.write import write
from qkv.models.text_model import TextModel


@dataclass(frozen=True)
class Job:
    """What there is to write: `outputs` lines for each prompt, next to each other."""

    model: TextModel
    prompts: Sequence[Sequence[int]]
    lines: Sequence[Line]
    shapers: Sequence[Shaper] = ()
    most: int = 128
    slide: Slide | None = None
    alternatives: int = 0

    def rows(self) -> FromPrompts:
        return FromPrompts(self.model, self.prompts, most=self.most, slide=self.slide)


class Strategy(ABC):
    """One way to write."""

    streams = True  # whether tokens are known one by one, before the end

    @property
    def outputs(self) -> int:
        """How many a prompt gets."""
        return 1

    def chances(self, prompt: Sequence[int]) -> list[Random | None]:
        """Where each output of a prompt draws from, if it draws at all."""
        return [None] * self.outputs

    @abstractmethod
    def write(self, job: Job) -> Iterator[None]:
        """Carry on the lines of a job until they end; yields after each step."""


class OneByOne(Strategy):
    """A strategy that chooses a token from scores, and never looks back."""

    chooser: Chooser

    def check(self, shapers: Sequence[Shaper]) -> None:
        """Refuse what would do nothing."""

    def write(self, job: Job) -> Iterator[None]:
        self.check(job.shapers)
        return write(job.rows(), job.lines, self.chooser, job.shapers, alternatives=job.alternatives)


@dataclass(frozen=True)
class Greedy(OneByOne):
    """The likeliest token at every step."""

    chooser = TheLikeliest()

    def check(self, shapers: Sequence[Shaper]) -> None:
        idle = [type(shaper).__name__ for shaper in shapers if isinstance(shaper, KeepsTheLikeliest)]
        if idle:
            raise QkvError(f"Greedy decoding takes the likeliest token, which {idle[0]} never changes: sample instead.")


@dataclass(frozen=True)
class Sampling(OneByOne):
    """Tokens drawn by chance, `samples` outputs a prompt.

    The same seed gives the same outputs for a prompt, alone or in any company, and however many samples there are. None
    makes up another seed each time.
    """

    samples: int = 1
    seed: int | None = None
    chooser = Drawn()

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise QkvError(f"Sampling gives 1 output a prompt at least, not {self.samples}.")

    @property
    def outputs(self) -> int:
        return self.samples

    def chances(self, prompt: Sequence[int]) -> list[Random | None]:
        seed = secrets.randbits(64) if self.seed is None else self.seed
        return [chance_of(seed, prompt, number) for number in range(self.samples)]


@dataclass(frozen=True)
class Beams(Strategy):
    """Beam search: the `count` best beginnings are carried on side by side, and the `best` whole outputs are given."""

    count: int = 4
    best: int = 1
    penalty: Penalty = field(default=PowerPenalty(1.0))
    streams = False

    def __post_init__(self) -> None:
        from qkv.generate.beam import check_beams

        check_beams(self.count, self.best)

    @property
    def outputs(self) -> int:
        return self.best

    def write(self, job: Job) -> Iterator[None]:
        from qkv.generate.beam import search_beams

        if job.alternatives:
            raise QkvError("Beam search weighs whole outputs, so it tells no alternatives to single tokens.")
        if any(line.text is not None and line.text.stops for line in job.lines):
            raise QkvError("Beam search ends at tokens, not at stop texts: leave these out, or decode otherwise.")
        first = job.lines[:: self.best]  # they differ in what they become only
        found = search_beams(
            job.rows(), first, beams=self.count, best=self.best, penalty=self.penalty, shapers=job.shapers
        )
        for place, hypotheses in enumerate(found):
            for line, hypothesis in zip(job.lines[place * self.best :], hypotheses, strict=False):
                ids = [*hypothesis.ids, *list(line.ends)[: int(hypothesis.ended)]]
                for token, log_probability in zip(ids, hypothesis.log_probabilities, strict=True):
                    line.add(token, log_probability)
                line.score = hypothesis.score
        yield
