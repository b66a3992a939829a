"""The rule for tensors that others keep one by one and we keep as one, such as those of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gather:
    """Several matrices of theirs, [outputs inputs] each, are one table of ours [several inputs outputs]."""

    theirs: tuple[str, ...]
    ours: str

    @property
    def their_names(self) -> tuple[str, ...]:
        return self.theirs

    @property
    def our_names(self) -> tuple[str, ...]:
        return (self.ours,)

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [torch.stack([matrix.T for matrix in theirs])]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [matrix.T for matrix in ours[0]]
