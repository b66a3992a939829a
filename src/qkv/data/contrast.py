"""Groups of texts whose embeddings are compared: pairs, triplets, pairs with a number or a class. [reimers2019 §3]

Shapes: b groups of a batch, g texts of a group, s slots, n groups.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.plan import PlannedBatch
from qkv.data.rows import single
from qkv.data.text_rows import TextBatch, TextRows, with_filler
from qkv.data.token_rows import Ints
from qkv.errors import QkvError


@dataclass(frozen=True)
class GroupBatch(TextBatch):
    """All the texts of some groups: the first text of every group, then the second of every group, and so on."""

    texts: int  # g, so that ids are [g·b s]
    groups: int  # b
    values: Tensor | None  # [b]: float32 how alike the texts are, or long the class of the group; None: alike


@dataclass(frozen=True)
class GroupRows:
    """Groups of g encoded texts: an anchor, a text like it, and perhaps texts that are not."""

    texts: tuple[TextRows, ...]
    values: NDArray[np.float32] | Ints | None = None  # [n]

    def __post_init__(self) -> None:
        sizes = [len(rows) for rows in self.texts]
        if len(sizes) < 2 or len(set(sizes)) > 1:
            raise QkvError(f"Groups need two texts or more each, as many of each sort, but there are {sizes}.")
        if self.values is not None and len(self.values) != sizes[0]:
            raise QkvError(f"There are {sizes[0]} groups of texts, but {len(self.values)} values.")

    def __len__(self) -> int:
        return len(self.texts[0])

    @property
    def original(self) -> Ints:
        return np.arange(len(self))

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        return single(np.max([rows.tokens.lengths for rows in self.texts], axis=0))

    def batch(self, planned: PlannedBatch) -> GroupBatch:
        if planned.filler:
            raise QkvError("Groups of texts are compared with each other, so batches with filler are not for them.")
        parts = [rows.tensors(planned) for rows in self.texts]
        return GroupBatch(
            ids=torch.cat([part["ids"] for part in parts]),
            lengths=torch.cat([part["lengths"] for part in parts]),
            segments=None,
            texts=len(parts),
            groups=len(planned.rows),
            values=None if self.values is None else with_filler(self.values, planned, 0),
        )
