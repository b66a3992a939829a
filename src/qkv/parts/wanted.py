"""How much of a stream anyone reads in the end: what stands for nobody need not be computed.

A head that decides by a class token reads one slot of each row. The last block is then needed at this slot alone: its
attention still reads the whole row, but nothing else of it is done for the other slots.
"""

from __future__ import annotations

from torch import nn

from qkv.parts.heads import ClassificationHead, DistilledHead, PooledHead, ProjectionHead
from qkv.parts.pool import DensePool, FirstToken, MeanOfFirst, NormedPool, UnitLength
from qkv.parts.programs import is_itself

AROUND_A_POOL = (ClassificationHead, ProjectionHead, PooledHead, DensePool, NormedPool, UnitLength)


def slots_read(head: nn.Module) -> int | None:
    """Slots, from the first of each row on, that a head reads of rows without padding; None: all, or nobody knows.

    A part that someone watches shows all that it is given, so it is given all.
    """
    if not is_itself(head):
        return None
    if type(head) is FirstToken:
        return 1
    if type(head) is MeanOfFirst:
        return head.count
    if type(head) is DistilledHead:
        return 2
    return slots_read(head.pool) if isinstance(head, AROUND_A_POOL) and type(head) in AROUND_A_POOL else None
