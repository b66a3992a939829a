"""Shuffled batches over any planned rows, epoch after epoch, and what every batch of tensors can do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from qkv.data.ahead import Ahead, prefetched
from qkv.data.plan import Batching, PlannedBatch, TokenBudget, even_stretches
from qkv.data.token_rows import Ints
from qkv.errors import QkvError


class TensorBatch:
    """A frozen dataclass whose tensors move together; numbers beside them are known without asking a device."""

    def to(self, device: torch.device | str) -> Self:
        """The batch on a device; from pinned memory the copy runs beside the computation."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return self._each(lambda tensor: tensor.pin_memory())

    @classmethod
    def joined(cls, batches: Sequence[Self]) -> Self:
        """The rows of batches of one width in one: counts are added up, and a flag is set where one has it."""
        found: dict[str, Any] = {}
        for each in fields(cls):  # type: ignore[arg-type]
            values = [getattr(batch, each.name) for batch in batches]
            if isinstance(values[0], Tensor):
                found[each.name] = torch.cat(values)
            else:
                found[each.name] = any(values) if isinstance(values[0], bool) else sum(values)
        return cls(**found)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        changed = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **changed)  # type: ignore[type-var]


Made = TypeVar("Made", bound=TensorBatch)
MadeHere = TypeVar("MadeHere", bound=TensorBatch, covariant=True)


class Rows(Protocol[MadeHere]):
    """All the rows of a data set, ready to be grouped into batches."""

    @property
    def original(self) -> Ints:
        """[n]: the place of each row among the examples that were given."""

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        """[n] [n]: the source and the target length of each row, as a `Batching` counts them.

        Rows that are one text have targets of a single token, `single(lengths)`, which need no room.
        """

    def batch(self, planned: PlannedBatch) -> MadeHere:
        """The padded tensors of a planned batch."""


def single(lengths: Ints) -> tuple[Ints, Ints]:
    """The sizes of rows that are one text each."""
    return lengths, np.ones_like(lengths)


def seed_of(seed: int, epoch: int, planned: PlannedBatch) -> int:
    """A seed of a batch's own: other in each epoch, and the same when a run is resumed."""
    drawn = np.random.SeedSequence([seed, epoch, *(int(row) for row in planned.rows[:4])])
    return int(drawn.generate_state(1, np.uint32)[0])


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
        self.sections: Sections[Made] = rows if hasattr(rows, "count") else _Whole(rows)
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

    def __iter__(self) -> Iterator[Made]:
        made = self._made(self._drafts(), self.place, self.part, self.parts)
        for batch, *behind in prefetched(made, self._prefetch) if self._prefetch else made:
            self.place, self.part = behind
            yield batch

    def _made(
        self, drafts: Iterator[tuple[Draft[Made], Where]], place: Where, done: int, parts: int
    ) -> Iterator[tuple[Made, Where, int]]:
        """Batches with the place and the part that come behind; `done` parts of the first are over."""
        for draft, behind in drafts:
            pieces = draft.divided(parts) if parts > 1 else [draft]
            for number in range(done, len(pieces)):
                batch = pieces[number].made()
                after = (place, number + 1) if number + 1 < len(pieces) else (behind, 0)
                yield batch.pin_memory() if self._pin else batch, *after
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
