"""Batches of one kind, which can share a record: what is known of each kind, and how many are recorded at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from qkv.train.standing import Number, StandingBatch, kind_of

MOST = 8  # kinds of batches that are recorded at a time: each holds a batch, and all share the memory of the largest
RECENT = 50 * MOST  # batches: a kind that came within so many is not given up for another
REMEMBERED = 64  # kinds, more than can be recorded

Replay = Callable[[], tuple[Tensor, ...]]


@dataclass
class Kind:
    """What is known of batches of one kind."""

    seen: int = 0
    last: int = 0  # the batch, counted from the first of all, that was the last of this kind
    refused: bool = False
    standing: StandingBatch | None = None
    count: Number | int = 0
    beside: tuple[str, ...] = ()  # names of what the objective tells besides
    learns: list[nn.Parameter] = field(default_factory=list)  # those that get gradients
    first: Replay | None = None  # gives gradients
    adding: Replay | None = None  # adds to them

    @property
    def recorded(self) -> bool:
        return self.first is not None or self.adding is not None

    def counted(self, batch: Any) -> int:
        count: int = getattr(batch, self.count.called) if isinstance(self.count, Number) else self.count
        return count


class Kinds:
    """The kinds that came lately."""

    def __init__(self) -> None:
        self.turn = 0  # batches so far
        self._known: dict[Hashable, Kind] = {}  # the one that came last stands last
        self._asked: dict[type, set[str]] = {}  # counts that the host decides by, of each class of batches

    def of(self, batch: Any, *more: Hashable) -> Kind:
        """The kind of a batch that comes now. Raises a TypeError for something that is neither a number nor a name."""
        self.turn += 1
        key = kind_of(batch, self.asked(batch)), *more
        kind = self._known.pop(key, None) or Kind()
        self._known[key] = kind
        kind.seen, kind.last = kind.seen + 1, self.turn
        if len(self._known) > REMEMBERED:
            del self._known[next(key for key, each in self._known.items() if not each.recorded)]
        return kind

    @property
    def all_differ(self) -> bool:
        """Of so many that came lately no two are of one kind."""
        return len(self._known) == REMEMBERED and not any(kind.seen > 1 for kind in self._known.values())

    @property
    def recorded(self) -> list[Kind]:
        return [kind for kind in self._known.values() if kind.recorded]

    def asked(self, batch: Any) -> set[str]:
        """The counts of such batches that the host decides by: batches of one kind have them in common, too."""
        return self._asked.setdefault(type(batch), set())

    def have_room(self) -> bool:
        """Whether one more can be recorded, perhaps in place of one that has not come for long."""
        kept = self.recorded
        return len(kept) < MOST or self.turn - min(kind.last for kind in kept) >= RECENT

    def make_room(self) -> bool:
        if not self.have_room():
            return False
        kept = self.recorded
        if len(kept) >= MOST:
            oldest = min(kept, key=lambda kind: kind.last)
            oldest.first = oldest.adding = None
        return True

    def drop(self) -> bool:
        """Give up all records; says whether there were any."""
        kept = self.recorded
        for kind in kept:
            kind.first = kind.adding = None
        return bool(kept)
