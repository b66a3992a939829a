"""What every batch of tensors can do, and what rows must tell to be grouped into batches."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from qkv.data.plan import PlannedBatch
from qkv.data.token_rows import Ints


class TensorBatch:
    """A frozen dataclass whose tensors move together; numbers beside them are known without asking a device."""

    def to(self, device: torch.device | str) -> Self:
        """The batch on a device; from pinned memory to a GPU the copy runs beside the computation."""
        beside = torch.device(device).type == "cuda"
        return self._each(lambda tensor: tensor.to(device, non_blocking=beside))

    def pin_memory(self) -> Self:
        return self._each(lambda tensor: tensor.pin_memory())

    @classmethod
    def joined(cls, batches: Sequence[Self]) -> Self:
        """The rows of batches of one width in one: counts are added up, and a flag is set where one has it."""
        found: dict[str, Any] = {}
        for each in fields(cls):  # type: ignore[arg-type]
            values = [getattr(batch, each.name) for batch in batches]
            if isinstance(values[0], Tensor):
                found[each.name] = torch.cat(values)
            else:
                found[each.name] = any(values) if isinstance(values[0], bool) else sum(values)
        return cls(**found)

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
