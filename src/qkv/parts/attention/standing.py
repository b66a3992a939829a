"""A cache that stands still: nothing of it changes place or shape between two steps, so that a step can be recorded.

A CUDA graph replays the same launches with the same addresses. So the slot of the next token is a number on the device,
attention is given all slots that there is room for, and those not yet written count as padding.

Shapes: r rows, h key/value heads, c slots that there is room for, d width of a head, m memory rows, s memory slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.cache import Cache, PreallocatedCache
from qkv.parts.attention.visibility import Tokens


@dataclass(frozen=True, eq=False)
class NextToken(Tokens):
    """One token a row, at the slot `place` [1] that only the device knows; the host knows how far it may go."""

    place: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.long))

    def index(self, device: torch.device | str) -> Tensor:
        return self.place


class StandingCache(Cache):
    """Rooms [r h c d] of an ordinary cache, written at a slot that the device knows, and read as a whole."""

    def __init__(self, like: PreallocatedCache, rows: int, capacity: int, sources: int = 0, slots: int = 0) -> None:
        """Empty, with a room for each that `like` has; `sources` rows of memory with `slots` each, where it has any."""
        super().__init__()
        self.capacity = capacity
        self._steps = {
            owner: tuple(_zeros(each, rows, capacity) for each in rooms)  # type: ignore[misc]
            for owner, rooms in like.rooms()
        }
        self._memory = {
            owner: tuple(_zeros(each, sources, slots) for each in rooms)  # type: ignore[misc]
            for owner, rooms in like.memory_rooms()
        }
        device = next(iter(self._steps.values()))[0].device
        self.place = torch.zeros(1, dtype=torch.long, device=device)  # of the next token
        self.real = torch.zeros(rows, capacity, dtype=torch.long, device=device)  # 0: padding, or not yet written
        self.memory_real = torch.zeros(sources, slots, dtype=torch.long, device=device)
        self.next_token = NextToken(1, capacity - 1, None, place=self.place)  # the host's slot: no later one comes
        self._all = Tokens(capacity, documents=self.real)

    def fill(self, cache: PreallocatedCache, memory: Tokens | None = None) -> None:
        """Take over what a cache holds; rows that are too many here stand for nothing."""
        length, documents = cache.length, cache.documents
        self.begin_at(length)
        given: list[Tensor] = []
        taken: list[Tensor] = []
        for owner, rooms in cache.rooms():
            for mine, theirs in zip(self._steps[owner], rooms, strict=True):
                taken.append(mine[: len(theirs), :, :length])
                given.append(theirs[:, :, :length])
        for owner, rooms in cache.memory_rooms():
            for mine, theirs in zip(self._memory[owner], rooms, strict=True):
                taken.append(mine[: len(theirs), :, : theirs.shape[2]])
                given.append(theirs)
        torch._foreach_copy_(taken, given)
        if documents is not None:
            self.real[: len(documents), :length] = documents
        if memory is not None:
            self.memory_real.zero_()
            self.memory_real[:, : memory.size] = 1
            if memory.documents is not None:
                self.memory_real[: len(memory.documents), : memory.size] = memory.documents

    def begin_at(self, length: int) -> None:
        """The first slots of every row hold what counts, from now on, and others nothing.

        Also of rows that stand for nothing: a row that saw nothing would have no number for an answer.
        """
        self.place.fill_(length)
        self.real.zero_()
        self.real[:, :length] = 1

    def begin_step(self) -> None:
        """The slot of the next token counts from now on."""
        self.real.index_fill_(1, self.place, 1)

    def end_step(self) -> None:
        self.place.add_(1)

    def extend(self, owner: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        all_k, all_v = self._steps[owner]
        return all_k.index_copy_(2, self.place, k), all_v.index_copy_(2, self.place, v)

    def room(self, owner: nn.Module) -> tuple[Tensor, Tensor]:
        return self._steps[owner]

    def rooms(self) -> Iterable[tuple[nn.Module, tuple[Tensor, Tensor]]]:
        """Of each attention, keys and values of its slots. [r h c d]"""
        return self._steps.items()

    def memory_room(self, owner: nn.Module) -> tuple[Tensor, Tensor]:
        return self._memory[owner]

    def keys(self, new: Tokens) -> Tokens:
        if new is not self.next_token:
            raise QkvError("A standing cache takes one token at a time, at the slot that it knows.")
        return self._all

    def advance(self, new: Tokens) -> None:
        """The device counts: see `end_step`."""

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        for rooms in self._steps.values():
            for room in rooms:
                room.copy_(room[rows])
        self.real.copy_(self.real[rows])

    def select(self, rows: Tensor, memory_rows: Tensor | None = None) -> None:
        raise QkvError("A standing cache keeps its rows: reorder them.")

    def truncate(self, length: int) -> None:
        raise QkvError("A standing cache only goes forward.")


class FromTheStart(Cache):
    """Given to a model that reads the first tokens of all rows: keys and values go to their rooms' first slots."""

    def __init__(self, into: StandingCache) -> None:
        super().__init__()
        self.into = into

    def extend(self, owner: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for room, new in zip(self.into.room(owner), (k, v), strict=True):
            room[:, :, : new.shape[2]] = new
        return k, v

    def keys(self, new: Tokens) -> Tokens:
        return new

    def advance(self, new: Tokens) -> None:
        """Whoever reads says how much of it counts: see `begin_at`."""


def _zeros(example: Tensor, rows: int, slots: int) -> Tensor:
    """Room that holds numbers from the start: what is hidden is weighed by 0, and 0 times no number is none."""
    return example.new_zeros(rows, example.shape[1], slots, example.shape[3])
