"""Shuffled batches over any planned rows, epoch after epoch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from qkv.data.ahead import prefetched
from qkv.data.course import Course, Draft, Place, Sections
from qkv.data.plan import Batching, TokenBudget
from qkv.data.rows import Made, Rows
from qkv.data.token_rows import Ints
from qkv.errors import QkvError

Where = TypeVar("Where")


class BatchStream(ABC, Generic[Made, Where]):
    """Batches that are made ahead, whole or in parts, and know where they are.

    `place` and `part` always tell the batch to come; saving and loading them continues with the very same batches, none
    replayed.
    """

    def __init__(self, place: Where, prefetch: int) -> None:
        self.place = place
        self.parts = 1  # that each batch comes in
        self.part = 0
        self.idle = False  # whether the batch handed out last is another rank's
        self._rank, self._ranks = 0, 1
        self._prefetch = prefetch
        self._pin = torch.cuda.is_available()

    @abstractmethod
    def _drafts(self) -> Iterator[tuple[Draft[Made], Where]]:
        """From the current place on, each with the place behind it."""

    @abstractmethod
    def _largest(self) -> int:
        """Rows of the largest batch around here."""

    @abstractmethod
    def _position(self) -> dict[str, Any]:
        """The place, and how the batches are made, as plain numbers and text."""

    def share(self, rank: int, ranks: int) -> None:
        """From the next iteration on, this rank's rows alone: order and places do not depend on how many share.

        Where a batch has fewer rows than there are ranks, those without any get rows of another, and are `idle`.
        """
        self._rank, self._ranks = rank, ranks

    def __iter__(self) -> Iterator[Made]:
        made = self._made(self._drafts(), self.place, self.part, self.parts)
        for batch, place, part, idle in prefetched(made, self._prefetch) if self._prefetch else made:
            self.place, self.part, self.idle = place, part, idle
            yield batch

    def _made(
        self, drafts: Iterator[tuple[Draft[Made], Where]], place: Where, done: int, parts: int
    ) -> Iterator[tuple[Made, Where, int, bool]]:
        """Batches, the place and the part that come behind, and whether another rank's rows they are.

        `done` parts of the first are over.
        """
        for draft, behind in drafts:
            pieces = draft.divided(parts)
            for number in range(done, len(pieces)):
                shares = pieces[number].divided(self._ranks)
                batch = shares[min(self._rank, len(shares) - 1)].made()
                is_last = number == len(pieces) - 1
                after = (behind, 0) if is_last else (place, number + 1)
                yield batch.pin_memory() if self._pin else batch, *after, self._rank >= len(shares)
            place, done = behind, 0

    def in_parts(self, parts: int) -> bool:
        """From the next iteration on each batch comes as so many smaller ones; says whether that makes any smaller."""
        most = self._largest()
        smaller = -(-most // parts) < -(-most // self.parts)
        self.parts = parts
        return smaller

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain numbers and text."""
        return {**self._position(), "part": self.part, "parts": self.parts}

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position, which must come from batches made in the same way."""


class Batches(BatchStream[Made, Place]):
    """Shuffled training batches of one data set, epoch after epoch.

    Iterating gives what is left of the current epoch; iterate again for the next.

    `rows` may be a function from epoch to rows: to cut the texts anew each epoch [provilkov2020], to hide other tokens,
    to pack other documents together. They may also come in sections, for data larger than memory. The next ones are
    made in the background meanwhile. Batches depend on lengths, so exact continuation within an epoch then needs a
    function that gives the same rows for the same epoch, which `TextTokenizer.encode` with dropout does not: continuing
    there keeps the position but regroups the rows.
    """

    def __init__(
        self,
        rows: Rows[Made] | Callable[[int], Rows[Made]] | Sections[Made],
        batching: Batching,
        *,
        seed: int = 0,
        prefetch: int = 4,
    ):
        super().__init__(Place(), prefetch)
        self.batching = batching
        self.seed = seed
        self._course = Course(rows, batching, seed)

    @property
    def epoch(self) -> int:
        return self.place.epoch

    @property
    def index(self) -> int:
        return self.place.index

    def __len__(self) -> int:
        """The number of batches in the current section, which is the whole epoch where data is in memory."""
        return len(self._course.plan(self.place.epoch, self.place.section)[1])

    def _drafts(self) -> Iterator[tuple[Draft[Made], Place]]:
        return self._course.drafts(self.place)

    def _largest(self) -> int:
        plan = self._course.plan(self.place.epoch, self.place.section)[1]
        return max((len(planned.rows) for planned in plan), default=0)

    def _position(self) -> dict[str, Any]:
        return {**asdict(self.place), "seed": self.seed, "batching": repr(self.batching)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, here in (("seed", self.seed), ("batching", repr(self.batching))):
            if state[name] != here:
                raise QkvError(f"The saved position belongs to batches with {name} {state[name]}, not {here}.")
        self.place = Place.of(state)
        self.part, self.parts = int(state["part"]), int(state["parts"])


def ordered_batches(rows: Rows[Made], max_tokens: int, *, multiple_of: int = 1) -> Iterator[tuple[Ints, Made]]:
    """Every row once, the longest first (so that too large a batch shows at once), with the rows' original places."""
    plan = TokenBudget(max_tokens, multiple_of).plan(*rows.sizes, np.random.default_rng(0))
    for planned in reversed(plan):
        yield rows.original[planned.rows], rows.batch(planned)
