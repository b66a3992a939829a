"""Batches whose rows come from several data sets, in exact proportion."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic

import numpy as np

from qkv.data.batches import BatchStream
from qkv.data.course import Course, Draft, Place, Sections
from qkv.data.plan import PlannedBatch, RowCount
from qkv.data.rows import Made, Rows
from qkv.errors import QkvError


@dataclass(frozen=True)
class Ingredient(Generic[Made]):
    """One of the data sets of a mixture: what it is called, and how many of its rows are wanted beside the others'."""

    name: str
    rows: Rows[Made] | Callable[[int], Rows[Made]] | Sections[Made]
    weight: float


@dataclass(frozen=True)
class Reached:
    """How far one data set has been read: the row to come, and what there was so far, over all epochs."""

    place: Place = field(default_factory=Place)
    rows: int = 0
    tokens: int = 0


class MixedBatches(BatchStream[Made, tuple[Reached, ...]]):
    """Batches of so many rows, each row from the data set that is furthest behind its share.

    Nothing is drawn: after n rows a data set of weight w has given w·n of them to within a row, in every stretch of
    training, so a mixture says what a model saw and not what it probably saw. Every data set has epochs of its own: a
    small one begins again, shuffled anew, which is told. The stream never ends.
    """

    def __init__(
        self,
        sources: Sequence[Ingredient[Made]],
        rows: int,
        *,
        seed: int = 0,
        prefetch: int = 4,
        say: Callable[[str], None] = lambda told: None,
    ) -> None:
        super().__init__((Reached(),) * len(sources), prefetch)
        self.names = [source.name for source in sources]
        self.weights = shares([source.weight for source in sources])
        self.rows = RowCount(rows).rows  # which checks it
        self.seed = seed
        self._courses = [Course(source.rows, RowCount(1), seed) for source in sources]
        self._say = say
        self._told = [0] * len(sources)  # the epoch that was last told of each

    def __iter__(self) -> Iterator[Made]:
        for batch in super().__iter__():
            for number, reached in enumerate(self.place):
                times = reached.place.epoch
                if times > self._told[number]:
                    self._told[number] = times
                    if times & (times - 1) == 0:  # the first, second, fourth, eighth: a small one has many
                        often = "once" if times == 1 else f"{times:,} times"
                        self._say(f"All of {self.names[number]} was read {often}: it begins again.")
            yield batch

    def _drafts(self) -> Iterator[tuple[Draft[Made], tuple[Reached, ...]]]:
        here = list(self.place)
        streams = [self._endless(number, reached.place) for number, reached in enumerate(here)]
        while True:
            pieces: list[tuple[Rows[Made], PlannedBatch]] = []
            for number, count in enumerate(self._next_rows([reached.rows for reached in here])):
                taken = [next(streams[number]) for _ in range(count)]
                for draft, place in taken:
                    ((_, planned),) = draft.pieces  # a row, as wide as it is long
                    here[number] = Reached(place, here[number].rows + 1, here[number].tokens + planned.source_width)
                pieces += together([draft for draft, _ in taken])
            yield Draft(widened(pieces)), tuple(here)

    def _next_rows(self, given: Sequence[int]) -> list[int]:
        """How many rows of the next batch each data set gives, after those given so far."""
        counts = list(given)
        for row in range(sum(given) + 1, sum(given) + self.rows + 1):
            behind = [weight * row - count for weight, count in zip(self.weights, counts, strict=True)]
            counts[behind.index(max(behind))] += 1
        return [now - before for now, before in zip(counts, given, strict=True)]

    def _endless(self, number: int, place: Place) -> Iterator[tuple[Draft[Made], Place]]:
        while True:
            begun = place
            for draft, behind in self._courses[number].drafts(place):
                place = behind
                yield draft, behind
            if place == begun:
                raise QkvError(f"There is no row to train on in {self.names[number]}.")

    def _largest(self) -> int:
        return self.rows

    def _position(self) -> dict[str, Any]:
        described = zip(self.names, self.weights, self.place, strict=True)
        sources = [
            {"name": name, "weight": weight, **asdict(reached.place), "rows": reached.rows, "tokens": reached.tokens}
            for name, weight, reached in described
        ]
        return {"sources": sources, "rows": self.rows, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check("seed", state["seed"], self.seed)
        self._check("rows", state["rows"], self.rows)
        saved: list[Mapping[str, Any]] = state["sources"]
        self._check("data", ", ".join(each["name"] for each in saved), ", ".join(self.names))
        self._check("weights", [each["weight"] for each in saved], self.weights)
        self.place = tuple(Reached(Place.of(dict(each)), int(each["rows"]), int(each["tokens"])) for each in saved)
        self._told = [reached.place.epoch for reached in self.place]
        self.part, self.parts = int(state["part"]), int(state["parts"])

    def _check(self, what: str, saved: object, here: object) -> None:
        if saved != here:
            raise QkvError(f"The saved position belongs to a mixture with {what} {saved}, not {here}.")


def shares(weights: Sequence[float]) -> list[float]:
    """Weights as parts of 1."""
    for weight in weights:
        if not 0 < weight < float("inf"):
            raise QkvError(f"A weight of a mixture must be a number above 0, not {weight:g}.")
    return [weight / sum(weights) for weight in weights]


def together(drafts: Sequence[Draft[Made]]) -> list[tuple[Rows[Made], PlannedBatch]]:
    """Single rows in as few pieces as there are sections that they come from."""
    pieces: list[tuple[Rows[Made], PlannedBatch]] = []
    for draft in drafts:
        ((rows, planned),) = draft.pieces
        if pieces and pieces[-1][0] is rows:
            before = pieces[-1][1]
            joined = np.concatenate([before.rows, planned.rows])
            widest = max(before.source_width, planned.source_width), max(before.target_width, planned.target_width)
            pieces[-1] = rows, PlannedBatch(joined, *widest)
        else:
            pieces.append((rows, planned))
    return pieces


def widened(pieces: Sequence[tuple[Rows[Made], PlannedBatch]]) -> tuple[tuple[Rows[Made], PlannedBatch], ...]:
    """All pieces as wide as the widest."""
    source = max(planned.source_width for _, planned in pieces)
    target = max(planned.target_width for _, planned in pieces)
    return tuple((rows, replace(planned, source_width=source, target_width=target)) for rows, planned in pieces)
