"""Rows with a class each, whatever they are: pictures, sounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

import numpy as np

from qkv.data.token_rows import Ints
from qkv.errors import QkvError


class ClassRows(Protocol):
    @property
    def labels(self) -> Ints: ...  # [n]

    @property
    def names(self) -> tuple[str, ...]: ...  # of all classes

    def __len__(self) -> int: ...

    def some(self, places: Sequence[int] | Ints) -> Self: ...


SomeRows = TypeVar("SomeRows", bound=ClassRows)


def divided_rows(rows: SomeRows, share: float, seed: int = 0) -> tuple[SomeRows, SomeRows]:
    """(to train on, held out): a share of every class that has two rows or more, drawn at random, one at least."""
    draw = np.random.default_rng(seed)
    held = []
    for number in range(len(rows.names)):
        places = draw.permutation(np.flatnonzero(rows.labels == number))
        held.append(places[: max(1, round(share * len(places)))] if len(places) > 1 else places[:0])
    chosen = np.sort(np.concatenate(held))
    if not 0 < len(chosen) < len(rows):
        raise QkvError(f"A share of {share:g} of {len(rows)} rows leaves nothing on one side: choose another share.")
    return rows.some(np.setdiff1d(np.arange(len(rows)), chosen)), rows.some(chosen)
