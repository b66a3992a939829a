"""The order of a head's rows where rotary positions turn pairs of them.

The turned pairs are the rows 2i and 2i + 1 of a head for some, i and i + half for others. The models are the same: the
rows of the query and the key matrices only stand in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from qkv.errors import QkvError
from qkv.weights.rules import Rename


@dataclass(frozen=True)
class PairedRows(Rename):
    """Theirs pairs neighbouring rows of a head, ours a row of its first half with one of its second half."""

    heads: int

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [self._swap(rows, self._half(rows), 2) for rows in theirs]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [self._swap(rows, 2, self._half(rows)) for rows in ours]

    def _half(self, rows: Tensor) -> int:
        if not rows.dim() or len(rows) % (2 * self.heads):
            raise QkvError(f"{self.theirs} has the shape {list(rows.shape)}, which is not {self.heads} heads of pairs.")
        return len(rows) // self.heads // 2

    def _swap(self, rows: Tensor, slow: int, fast: int) -> Tensor:
        """Within each head, what counted slowly counts fast and the other way round."""
        by_head = rows.reshape(self.heads, slow, fast, *rows.shape[1:])
        return by_head.transpose(1, 2).reshape(rows.shape)
