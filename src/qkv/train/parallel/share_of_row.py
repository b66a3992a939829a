"""Which slots of every row are one rank's, where several ranks read a row together.

A row is cut into twice as many stretches as there are ranks, and rank c has the c-th from the front and the c-th from
the back: who looks back reads little early in a row and much late in it, so all ranks have the same to do.
[grattafiori2024 §3.3.2]

Shapes: n slots of a row, s slots of a rank, filling included.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError


@dataclass(frozen=True)
class ShareOfRow:
    """The share of one of so many ranks."""

    rank: int
    ranks: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise QkvError(f"Rows shared by {self.ranks} ranks have shares 0 to {self.ranks - 1}, not {self.rank}.")

    def each(self, row: int) -> int:
        """Slots of one stretch; the last ones may go beyond the end of the row."""
        return -(-row // (2 * self.ranks))

    def starts(self, row: int) -> tuple[int, int]:
        """Where the two stretches begin."""
        each = self.each(row)
        return self.rank * each, (2 * self.ranks - 1 - self.rank) * each

    def slots(self, row: int, device: torch.device | str = "cpu") -> Tensor:
        """The slots of this rank; those that are `row` or more are filling. [s]"""
        each = self.each(row)
        return torch.cat([torch.arange(start, start + each, device=device) for start in self.starts(row)])

    def in_row_order(self, gathered: Tensor, row: int) -> Tensor:
        """What all ranks hold of a row, as the row has it. [ranks b g s d] → [b g n d]"""
        first, second = gathered.unflatten(3, (2, -1)).unbind(3)  # [ranks b g s/2 d] each
        return torch.cat([*first.unbind(0), *second.unbind(0)[::-1]], 2)[:, :, :row]
