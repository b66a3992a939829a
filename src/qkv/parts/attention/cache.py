"""Keys and values kept from earlier steps, so that each decoding step computes only its own.

Shapes: r rows, h key/value heads, s slots, d width of a head, m memory rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts import cpu_steps
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import Tokens
from qkv.parts.programs import runs_our_own


class Cache:
    """What a model keeps between decoding steps. The slots grow by concatenation, without a bound.

    Self-attention extends its own entry at every step; cross-attention computes its entry once, for the memory's rows.
    """

    def __init__(self) -> None:
        self.length = 0  # slots already decoded
        self._keys: tuple[Tokens, Tokens] | None = None  # the new tokens of this step, and all tokens up to them
        self._documents: Tensor | None = None  # [r length], of the slots already decoded
        self._steps: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self._memory: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self._sums: dict[nn.Module, tuple[Tensor, ...]] = {}  # of mixers that keep no slots

    def extend(self, owner: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k [r h t d] and v; give all slots so far. [r h s+t d]"""
        if owner in self._steps:
            past_k, past_v = self._steps[owner]
            k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
        self._steps[owner] = (k, v)
        return k, v

    def of_memory(self, owner: nn.Module, compute: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory, computed at the first step only. [m h s d]"""
        if owner not in self._memory:
            self._memory[owner] = compute()
        return self._memory[owner]

    def sums(self, owner: nn.Module) -> tuple[Tensor, ...] | None:
        """What `keep_sums` was given at the last step; None at the first."""
        return self._sums.get(owner)

    def keep_sums(self, owner: nn.Module, sums: tuple[Tensor, ...]) -> None:
        """Keep tensors [r …] of a mixer that needs no earlier slots, but only sums over them."""
        self._sums[owner] = sums

    def keys(self, new: Tokens) -> Tokens:
        """The tokens that the slots hold once `new` has been appended; the same object for every layer of a step."""
        if self._keys is None or self._keys[0] is not new:
            if new.start != self.length:
                raise QkvError(
                    f"The cache holds {self.length} slots, so the next token is number {self.length}, not {new.start}: "
                    "give Tokens(size, start=cache.length)."
                )
            documents = new.documents
            if self.length:
                if (documents is None) != (self._documents is None):
                    raise QkvError("Document numbers must come with every step of a cache, or with none.")
                if documents is not None and self._documents is not None:
                    documents = torch.cat((self._documents, documents), 1)  # [r length+t]
            self._keys = (new, Tokens(self.length + new.size, documents=documents))
        return self._keys[1]

    def advance(self, new: Tokens) -> None:
        """The model calls this once, after all its layers have decoded the `new` slots."""
        keys = self.keys(new)
        self.length, self._documents, self._keys = keys.size, keys.documents, None

    def select(self, rows: Tensor, memory_rows: Tensor | None = None) -> None:
        """Keep these rows, in this order (a row may occur twice); and these memory rows, if given."""
        self._select_shared(rows, memory_rows)
        self._steps = {owner: (k[rows], v[rows]) for owner, (k, v) in self._steps.items()}

    def truncate(self, length: int) -> None:
        """Forget all slots from `length` on, as if they had never been decoded."""
        self._shorten(length)
        self._steps = {owner: (k[:, :, :length], v[:, :, :length]) for owner, (k, v) in self._steps.items()}

    def _shorten(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise QkvError(f"The cache holds {self.length} slots, so it cannot be cut to {length}.")
        if self._sums and length < self.length:
            raise QkvError(
                "Sums over earlier tokens are all that was kept, and none can be taken out: decode forward only."
            )
        self.length, self._keys = length, None
        if self._documents is not None:
            self._documents = self._documents[:, :length]

    def _select_shared(self, rows: Tensor, memory_rows: Tensor | None) -> None:
        if self._documents is not None:
            self._documents = self._documents[rows]
        self._sums = {owner: tuple(part[rows] for part in sums) for owner, sums in self._sums.items()}
        if memory_rows is not None:
            self._memory = {  # index_select is on a CPU several times faster than indexing
                owner: (k.index_select(0, memory_rows), v.index_select(0, memory_rows))
                for owner, (k, v) in self._memory.items()
            }


class WholeRows(Cache):
    """Keeps the tokens themselves, for models that can keep nothing they made of them and read every row anew.

    A step then costs as much as reading the whole row.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ids: Tensor | None = None  # [r length]
        self._positions: Tensor | None = None

    def append(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """All ids and positions so far, these [r t] the last of them. [r s+t] each"""
        if self._ids is not None and self._positions is not None:
            ids, positions = torch.cat((self._ids, ids), 1), torch.cat((self._positions, positions), 1)
        self._ids, self._positions = ids, positions
        return ids, positions

    def select(self, rows: Tensor, memory_rows: Tensor | None = None) -> None:
        super().select(rows, memory_rows)
        if self._ids is not None and self._positions is not None:
            self._ids, self._positions = self._ids[rows], self._positions[rows]

    def truncate(self, length: int) -> None:
        super().truncate(length)
        if self._ids is not None and self._positions is not None:
            self._ids, self._positions = self._ids[:, :length], self._positions[:, :length]


class PreallocatedCache(Cache):
    """A cache with room for `capacity` slots from the start: a step writes in place and copies nothing."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self._noted: dict[nn.Module, object] = {}

    def extend(self, owner: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = k.shape[2]
        end = self.length + new
        self.check_room(new)
        if owner not in self._steps:
            self.take(owner, _room(k, self.capacity), _room(v, self.capacity))
        all_k, all_v = self._steps[owner]
        all_k.narrow(2, self.length, new).copy_(k)
        all_v.narrow(2, self.length, new).copy_(v)
        return all_k.narrow(2, 0, end), all_v.narrow(2, 0, end)

    def select(self, rows: Tensor, memory_rows: Tensor | None = None) -> None:
        self._select_shared(rows, memory_rows)
        if memory_rows is not None:
            self._noted.clear()
        rooms = [room for pair in self._steps.values() for room in pair]
        if cpu_steps.can_reorder(rooms, rows):
            cpu_steps.reorder(rooms, rows, self.length)
            return
        for owner, (k, v) in self._steps.items():
            self.take(owner, _selected(k, rows, self.length), _selected(v, rows, self.length))

    def truncate(self, length: int) -> None:
        self._shorten(length)  # the room stays: what is written next overwrites what is forgotten

    def check_room(self, new: int) -> None:
        """Whether so many slots more can be kept."""
        if (end := self.length + new) > self.capacity:
            raise QkvError(f"The cache holds {self.capacity} slots and slot {end} was asked for: make it larger.")

    def room(self, owner: nn.Module) -> tuple[Tensor, Tensor] | None:
        """Keys and values of an attention's slots [r h capacity d], for those who write the next ones themselves."""
        return self._steps.get(owner)

    def noted(self, owner: nn.Module) -> object | None:
        """What `note` was given, if all keys and values still lie where they lay then."""
        return self._noted.get(owner)

    def note(self, owner: nn.Module, what: object) -> None:
        """Keep what someone made of the places where keys and values lie."""
        self._noted[owner] = what

    @property
    def documents(self) -> Tensor | None:
        """[r length], of the slots already decoded; None: all are real."""
        return self._documents

    @property
    def keeps_slots_only(self) -> bool:
        """Whether keys and values of slots are all that is kept."""
        return not self._sums

    def take(self, owner: nn.Module, k: Tensor, v: Tensor) -> None:
        """Make these [r h capacity d] the room of an attention."""
        self._noted.clear()
        self._steps[owner] = (k, v)

    def rooms(self) -> Iterable[tuple[nn.Module, tuple[Tensor, Tensor]]]:
        """Of each attention, keys and values of its slots. [r h capacity d]"""
        return self._steps.items()

    def memory_rooms(self) -> Iterable[tuple[nn.Module, tuple[Tensor, Tensor]]]:
        """Of each attention to a memory, keys and values. [m h s d]"""
        return self._memory.items()


class FilledInLine(Cache):
    """Given to a model that reads prompts in line: their keys and values go to rows of a new cache, and end together.

    What stands before a row there is zeros, and counts as padding.
    """

    def __init__(self, into: PreallocatedCache, line: InLine) -> None:
        super().__init__()
        assert line.documents is not None
        assert line.positions is not None
        assert line.bounds is not None
        self.into, self.slots, self.bounds = into, line.end, line.bounds
        lengths = torch.tensor(line.lengths, device=line.documents.device)  # [r]
        self.row = line.documents[0] - 1  # of each token in line
        self.slot = line.positions[0] + (self.slots - lengths)[self.row]
        self.real = (torch.arange(self.slots, device=lengths.device) >= self.slots - lengths[:, None]).long()  # [r s]

    def extend(self, owner: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.into.take(owner, self._rows(k, self.into.capacity), self._rows(v, self.into.capacity))
        return k, v

    def keys(self, new: Tokens) -> Tokens:
        return new

    def advance(self, new: Tokens) -> None:
        self.into.advance(Tokens(self.slots, documents=self.real))

    def in_rows(self, x: Tensor) -> Tensor:
        """[1 s d] → [r slots d]"""
        return self._rows(x[:, None], self.slots)[:, 0]

    def _rows(self, x: Tensor, slots: int) -> Tensor:
        """[1 h s d] → [r h slots d], of which those behind the prompts hold nothing yet."""
        if runs_our_own(x) and not torch.is_grad_enabled():
            from qkv.parts.attention import in_rows_triton  # Triton comes with torch's builds for GPUs only

            rows = x.new_empty(len(self.real), x.shape[1], slots, x.shape[3])
            in_rows_triton.put(x, rows, self.bounds, self.slots)
            return rows
        rows = x.new_zeros(len(self.real), x.shape[1], slots, x.shape[3])
        rows.transpose(1, 2)[self.row, self.slot] = x[0].transpose(0, 1)
        return rows


def _room(example: Tensor, capacity: int) -> Tensor:
    rows, heads, _, width = example.shape
    return example.new_empty(rows, heads, capacity, width)


def _selected(slots: Tensor, rows: Tensor, used: int) -> Tensor:
    """These rows in new room, copied once and only as far as they are used."""
    new = slots.new_empty(len(rows), *slots.shape[1:])
    torch.index_select(slots[:, :, :used], 0, rows, out=new[:, :, :used])
    return new
