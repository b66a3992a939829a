"""A batch as one of several ranks reads it: whole rows, of which only its own slots are predicted and counted.

Ids are small beside all that is made of them, so every rank has those of whole rows: positions, documents and padding
are then what they are in one process.

Shapes: b rows, n slots of a row, s slots of this rank, m hidden tokens of this rank.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from qkv.data.masking import MaskedBatch
from qkv.data.packing import LanguageBatch
from qkv.data.rows import TensorBatch
from qkv.errors import QkvError
from qkv.train.parallel.share_of_row import ShareOfRow


@dataclass(frozen=True)
class LanguageStretch(LanguageBatch):
    """`predicted` and `bytes` are those of this rank's slots; of all ranks together they are those of the batch."""

    rank: int
    ranks: int

    @property
    def wanted(self) -> tuple[Tensor, Tensor]:
        """Of this rank's slots. [b s] [b s]"""
        wanted, real = super().wanted  # [b n] each
        slots = ShareOfRow(self.rank, self.ranks).slots(wanted.shape[1], wanted.device)
        within = slots.clamp(max=wanted.shape[1] - 1)
        return wanted[:, within], real[:, within] & (slots < wanted.shape[1])


@dataclass(frozen=True)
class MaskedStretch(MaskedBatch):
    """`places` [m] are row · s + slot among this rank's slots, `wanted` [m] what was hidden there."""

    rank: int
    ranks: int


def batch_for(batch: Any, rank: int, ranks: int) -> TensorBatch:
    """The batch for one of so many ranks that share its rows. Give it on the host: it is counted here."""
    share = ShareOfRow(rank, ranks)
    if type(batch) is LanguageBatch:
        return _language(batch, share)
    if type(batch) is MaskedBatch:
        return _masked(batch, share)
    raise QkvError(
        f"A {type(batch).__name__} cannot be shared out along its rows: context ranks are for language models and "
        "masked language models."
    )


def _language(batch: LanguageBatch, share: ShareOfRow) -> LanguageStretch:
    _, real = batch.wanted  # [b n]
    row = real.shape[1]
    predicted = []
    for rank in range(share.ranks):
        slots = ShareOfRow(rank, share.ranks).slots(row)
        predicted.append(int(real[:, slots[slots < row]].sum()))
    # Bytes are an average over predicted tokens: each rank has its part, and no byte is lost in rounding.
    before, whole = sum(predicted[: share.rank]), max(1, sum(predicted))
    upto = before + predicted[share.rank]
    return LanguageStretch(
        ids=batch.ids,
        documents=batch.documents,
        packed=batch.packed,
        predicted=predicted[share.rank],
        bytes=batch.bytes * upto // whole - batch.bytes * before // whole,
        rank=share.rank,
        ranks=share.ranks,
    )


def _masked(batch: MaskedBatch, share: ShareOfRow) -> MaskedStretch:
    row = batch.ids.shape[1]
    slots = share.slots(row)
    place = torch.full((row,), -1)  # of each slot among this rank's
    place[slots[slots < row]] = torch.arange(len(slots))[slots < row]
    rows, slot = batch.places // row, batch.places % row
    mine = place[slot] >= 0
    given = {each.name: getattr(batch, each.name) for each in fields(batch)}
    given |= {"places": (rows * len(slots) + place[slot])[mine], "wanted": batch.wanted[mine]}
    return MaskedStretch(**given, rank=share.rank, ranks=share.ranks)
