"""Shuffled batches over any planned rows, epoch after epoch, and what every batch of tensors can do."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from qkv.data.ahead import Ahead, prefetched
from qkv.data.plan import Batching, PlannedBatch, TokenBudget
from qkv.data.token_rows import Ints
from qkv.errors import QkvError


class TensorBatch:
    """A frozen dataclass whose tensors move together; numbers beside them are known without asking a device."""

    def to(self, device: torch.device | str) -> Self:
        """The batch on a device; from pinned memory the copy runs beside the computation."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return self._each(lambda tensor: tensor.pin_memory())

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


class Batches(Generic[Made]):
    """Shuffled training batches, epoch after epoch, that know where they are.

    Iterating gives what is left of the current epoch; iterate again for the next. `epoch` and `index` always tell the
    batch to come, and saving and loading them continues with the very same batches, none replayed.

    `rows` may be a function from epoch to rows: to cut the texts anew each epoch [provilkov2020], to hide other tokens,
    to pack other documents together. The next epoch's are made in the background meanwhile. Batches depend on lengths,
    so exact continuation within an epoch then needs a function that gives the same rows for the same epoch, which
    `TextTokenizer.encode` with dropout does not: continuing there keeps the position but regroups the rows.
    """

    def __init__(
        self, rows: Rows[Made] | Callable[[int], Rows[Made]], batching: Batching, *, seed: int = 0, prefetch: int = 4
    ):
        self.batching = batching
        self.seed = seed
        self.epoch = 0
        self.index = 0
        self.parts = 1  # that each batch comes in
        self.part = 0
        self._rows = rows
        self._prefetch = prefetch
        self._pin = torch.cuda.is_available()
        self._planned: dict[int, Ahead[tuple[Rows[Made], list[PlannedBatch]]]] = {}

    def __len__(self) -> int:
        """The number of batches in the current epoch."""
        return len(self._plan(self.epoch)[1])

    def __iter__(self) -> Iterator[Made]:
        rows, plan = self._plan(self.epoch)
        if self.index >= len(plan):  # only after continuing in an epoch that was cut anew, into fewer batches
            self.epoch, self.index, self.part = self.epoch + 1, 0, 0
            rows, plan = self._plan(self.epoch)
        if callable(self._rows):
            self._start(self.epoch + 1)
        made = self._made(rows, plan[self.index :], self.part, self.parts)
        for batch, is_last in prefetched(made, self._prefetch) if self._prefetch else made:
            self.part = 0 if is_last else self.part + 1
            self.index += is_last
            if self.index == len(plan):
                self.epoch, self.index = self.epoch + 1, 0
            yield batch

    def in_parts(self, parts: int) -> bool:
        """From the next iteration on each batch comes as so many smaller ones; says whether that makes any smaller."""
        most = max(len(planned.rows) for planned in self._plan(self.epoch)[1])
        smaller = -(-most // parts) < -(-most // self.parts)
        self.parts = parts
        return smaller

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain numbers and text."""
        return {
            "epoch": self.epoch,
            "index": self.index,
            "part": self.part,
            "parts": self.parts,
            "seed": self.seed,
            "batching": repr(self.batching),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position, which must come from batches made in the same way."""
        for name, here in (("seed", self.seed), ("batching", repr(self.batching))):
            if state[name] != here:
                raise QkvError(f"The saved position belongs to batches with {name} {state[name]}, not {here}.")
        self.epoch, self.index = int(state["epoch"]), int(state["index"])
        self.part, self.parts = int(state["part"]), int(state["parts"])

    def _made(self, rows: Rows[Made], left: list[PlannedBatch], done: int, parts: int) -> Iterator[tuple[Made, bool]]:
        """What is left of an epoch, each with whether it ends a planned batch; `done` parts of the first are over."""
        for planned in left:
            pieces = planned.divided(parts) if parts > 1 else [planned]
            for number in range(done, len(pieces)):
                batch = rows.batch(pieces[number])
                yield batch.pin_memory() if self._pin else batch, number == len(pieces) - 1
            done = 0

    def _start(self, epoch: int) -> "Ahead[tuple[Rows[Made], list[PlannedBatch]]]":
        if epoch not in self._planned:
            self._planned = {kept: ahead for kept, ahead in self._planned.items() if kept == self.epoch}
            self._planned[epoch] = Ahead(lambda: self._compute(epoch))
        return self._planned[epoch]

    def _plan(self, epoch: int) -> tuple[Rows[Made], list[PlannedBatch]]:
        return self._start(epoch).result()

    def _compute(self, epoch: int) -> tuple[Rows[Made], list[PlannedBatch]]:
        rows = self._rows(epoch) if callable(self._rows) else self._rows
        generator = np.random.default_rng([self.seed, epoch])
        batches = self.batching.plan(*rows.sizes, generator)
        return rows, [batches[i] for i in generator.permutation(len(batches))]


def ordered_batches(rows: Rows[Made], max_tokens: int, *, multiple_of: int = 1) -> Iterator[tuple[Ints, Made]]:
    """Every row once, the longest first (so that too large a batch shows at once), with the rows' original places."""
    plan = TokenBudget(max_tokens, multiple_of).plan(*rows.sizes, np.random.default_rng(0))
    for planned in reversed(plan):
        yield rows.original[planned.rows], rows.batch(planned)
