"""The order in which the rows of a data set are read: epoch by epoch, section by section, batch by batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, runtime_checkable

import numpy as np

from qkv.data.ahead import Ahead
from qkv.data.plan import Batching, PlannedBatch, even_stretches
from qkv.data.rows import Made, MadeHere, Rows


@runtime_checkable
class Sections(Protocol[MadeHere]):
    """Data that need not fit in memory: an epoch is `count` sections, and the rows of one are made when it comes."""

    @property
    def count(self) -> int: ...

    def rows(self, epoch: int, section: int) -> Rows[MadeHere]:
        """The same for the same numbers, wherever and however often they are made."""


@dataclass(frozen=True)
class Place:
    """The batch to come: its epoch, the section of that, its number there."""

    epoch: int = 0
    section: int = 0
    index: int = 0

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Place":
        return cls(int(state["epoch"]), int(state.get("section", 0)), int(state["index"]))  # runs from before sections


@dataclass(frozen=True)
class Draft(Generic[Made]):
    """A batch that is planned and not made yet: rows of one data set, or of several."""

    pieces: tuple[tuple[Rows[Made], PlannedBatch], ...]

    @property
    def size(self) -> int:
        return sum(len(planned.rows) for _, planned in self.pieces)

    def divided(self, parts: int) -> "list[Draft[Made]]":
        """The same rows in so many batches, or in as many as there are rows."""
        return [self._cut(first, last) for first, last in even_stretches(self.size, parts)]

    def _cut(self, first: int, last: int) -> "Draft[Made]":
        kept = []
        for rows, planned in self.pieces:
            count = len(planned.rows)
            if first < count and last > 0:
                kept.append((rows, planned.cut(max(0, first), last)))
            first, last = first - count, last - count
        return Draft(tuple(kept))

    def made(self) -> Made:
        batches = [rows.batch(planned) for rows, planned in self.pieces]
        return batches[0] if len(batches) == 1 else type(batches[0]).joined(batches)


class Course(Generic[Made]):
    """The order of a data set's batches: planned section by section, of which the next is made in the background."""

    def __init__(
        self, rows: Rows[Made] | Callable[[int], Rows[Made]] | Sections[Made], batching: Batching, seed: int
    ) -> None:
        self.sections: Sections[Made] = sections_of(rows)
        self.batching = batching
        self.seed = seed
        self._planned: dict[int, Ahead[tuple[Rows[Made], list[PlannedBatch]]]] = {}

    def drafts(self, place: Place) -> Iterator[tuple[Draft[Made], Place]]:
        """What is left of the epoch, or the next one where nothing is, each with the place behind it."""
        for epoch in (place.epoch, place.epoch + 1):
            given = False
            for section in range(place.section, self.sections.count):
                rows, plan = self.plan(epoch, section)
                self._start(self._number(epoch, section) + 1)
                for index in range(place.index, len(plan)):
                    given = True
                    ends_epoch = index + 1 == len(plan) and section + 1 == self.sections.count
                    behind = Place(epoch, section, index + 1)
                    if index + 1 == len(plan):
                        behind = Place(epoch + 1) if ends_epoch else Place(epoch, section + 1)
                    yield Draft(((rows, plan[index]),)), behind
                place = Place(epoch, section + 1)
            if given:
                return
            place = Place(epoch + 1)

    def plan(self, epoch: int, section: int) -> tuple[Rows[Made], list[PlannedBatch]]:
        return self._start(self._number(epoch, section)).result()

    def _number(self, epoch: int, section: int) -> int:
        return epoch * self.sections.count + section

    def _start(self, number: int) -> "Ahead[tuple[Rows[Made], list[PlannedBatch]]]":
        """Sections are held two at a time: more of them need not fit in memory."""
        planned = dict(self._planned)
        found = planned.get(number) or Ahead(lambda: self._compute(*divmod(number, self.sections.count)))
        self._planned = {near: ahead for near, ahead in planned.items() if near == number - 1} | {number: found}
        return found

    def _compute(self, epoch: int, section: int) -> tuple[Rows[Made], list[PlannedBatch]]:
        rows = self.sections.rows(epoch, section)
        sizes = rows.sizes
        generator = np.random.default_rng([self.seed, epoch, section])
        batches = self.batching.plan(*sizes, generator) if len(sizes[0]) else []
        return rows, [batches[i] for i in generator.permutation(len(batches))]


class _Whole(Generic[Made]):
    """Rows in memory: an epoch is one section. A function from epoch to rows makes them anew."""

    count = 1

    def __init__(self, rows: Rows[Made] | Callable[[int], Rows[Made]]) -> None:
        self._rows = rows

    def rows(self, epoch: int, section: int) -> Rows[Made]:
        return self._rows(epoch) if callable(self._rows) else self._rows


def sections_of(rows: Rows[Made] | Callable[[int], Rows[Made]] | Sections[Made]) -> Sections[Made]:
    return rows if isinstance(rows, Sections) else _Whole(rows)
