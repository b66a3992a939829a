"""What every objective gives to the training loop, and what it gets from the data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from qkv.parts.context import Ledger


@dataclass(frozen=True)
class Loss:
    """A sum and the number of things summed, kept apart so that batches of unequal size average correctly."""

    total: Tensor  # [] float32: the sum over all counted tokens
    count: int  # a number the host already knows, so that reading it never waits for the device
    beside: Mapping[str, Tensor] = field(default_factory=dict)  # [] figures of the batch to be recorded, by name


class Batch(Protocol):
    """A dataclass of tensors that can be moved to a device; only the objective looks inside."""

    def to(self, device: torch.device) -> Self: ...


class Objective(Protocol):
    """Maps a model and a batch to the loss that the loop makes small.

    What it counts are tokens, unless it has an attribute `counts` that says otherwise, such as "texts". Where the loss
    of a row depends on the other rows of its batch, `compares_rows` is True: such a batch cannot be taken in parts.
    Where it waits for the device on its way, to decide something on the host, `decides_on_host` is True: such steps are
    never recorded. All other numbers of the host that it reads stand in the batch or in its own fields.
    """

    def __call__(self, model: Any, batch: Any) -> Loss: ...


@dataclass(frozen=True)
class Predictions:
    """What a model says where an objective asks it to choose between classes (tokens are classes too)."""

    logits: Tensor  # [… c]
    wanted: Tensor  # […] long: the right class
    real: Tensor  # […] bool: those that count
    count: int  # how many these are


class Predicting(Protocol):
    """An objective that can show a model's predictions, for a student to learn from; with a ledger, recorded."""

    def predictions(self, model: Any, batch: Any, ledger: Ledger | None = None) -> Predictions: ...
