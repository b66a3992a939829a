"""Texts and pairs of texts with a label, or with a number, for each: reading them, and the batches made of them.

Shapes: b rows of a batch, s slots, n rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.columns import Kind, label, number, one_of
from qkv.data.plan import PlannedBatch
from qkv.data.table import Problem, Table, read_table
from qkv.data.text_rows import TaskRows, TextBatch, with_filler
from qkv.data.token_rows import Ints
from qkv.errors import QkvError


@dataclass(frozen=True)
class LabelledTexts:
    """Texts, or (first, second) pairs of them, and the name of each one's class."""

    texts: list[str]
    seconds: list[str] | None
    labels: list[str]
    names: tuple[str, ...]  # of all classes, in the order of a model's logits
    problems: list[Problem] = field(default_factory=list)

    def numbers(self) -> Ints:
        """The labels as places in `names`. [n]"""
        place = {name: number for number, name in enumerate(self.names)}
        return np.array([place[name] for name in self.labels])


@dataclass(frozen=True)
class RatedTexts:
    """Texts, or pairs of them, and a number for each, such as how alike the two are."""

    texts: list[str]
    seconds: list[str] | None
    values: list[float]
    problems: list[Problem] = field(default_factory=list)


def read_labelled(
    path: str | Path,
    *,
    text: str = "text",
    second: str | None = None,
    label_column: str = "label",
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    format: str | None = None,
) -> LabelledTexts:
    """Columns of a table as labelled texts; with `second`, as labelled pairs.

    The classes are those that occur, numbers in the order of their size and names in that of the alphabet, so that the
    order of the rows does not matter; with `classes`, say of a trained model, another label makes a bad row.
    """
    kind = label if classes is None else one_of(classes)
    table = _read(path, text, second, label_column, kind, names, format)
    labels: list[str] = table.column(label_column)
    found = tuple(classes) if classes is not None else class_names(labels, table.problems)
    return LabelledTexts(table.column(text), _second(table, second), labels, found, table.problems)


def read_rated(
    path: str | Path,
    *,
    text: str = "text",
    second: str | None = None,
    value: str = "value",
    names: Sequence[str] | None = None,
    format: str | None = None,
) -> RatedTexts:
    """Columns of a table as texts with a number each; with `second`, as pairs."""
    table = _read(path, text, second, value, number, names, format)
    return RatedTexts(table.column(text), _second(table, second), table.column(value), table.problems)


def class_names(labels: Sequence[str], problems: Sequence[Problem] = ()) -> tuple[str, ...]:
    """The different labels: numbers by size, names by alphabet. `problems` are rows whose labels are not among them."""
    different = sorted(set(labels))
    if len(different) < 2:
        bad = f"; bad rows were left out ({len(problems)}), the first is {problems[0]}" if problems else ""
        raise QkvError(f"A classifier needs two different labels at least, but the only one is {different[0]!r}{bad}.")
    if all(name.removeprefix("-").isdecimal() for name in different):
        different.sort(key=int)
    return tuple(different)


def _read(
    path: str | Path,
    text: str,
    second: str | None,
    about: str,
    kind: Kind,
    names: Sequence[str] | None,
    format: str | None,
) -> Table:
    columns = [text, *([second] if second else []), about]
    if len(set(columns)) < len(columns):
        raise QkvError(f"The columns {', '.join(columns)} are not all different: name different ones.")
    return read_table(path, columns, kinds={about: kind}, names=names, format=format)


def _second(table: Table, second: str | None) -> list[str] | None:
    return None if second is None else table.column(second)


@dataclass(frozen=True)
class ClassBatch(TextBatch):
    """Texts and the class of each."""

    labels: Tensor  # [b] long, -1 in filler rows
    labelled: int  # rows that are not filler


@dataclass(frozen=True)
class ClassRows(TaskRows):
    """Encoded texts and the number of each one's class."""

    labels: Ints  # [n]

    def __post_init__(self) -> None:
        _one_each(len(self.texts), len(self.labels), "labels")

    def batch(self, planned: PlannedBatch) -> ClassBatch:
        labels = with_filler(self.labels, planned, -1)
        return ClassBatch(**self.texts.tensors(planned), labels=labels, labelled=len(planned.rows))


@dataclass(frozen=True)
class ValueBatch(TextBatch):
    """Texts and a number for each."""

    values: Tensor  # [b] float32, NaN in filler rows
    valued: int  # rows that are not filler


@dataclass(frozen=True)
class ValueRows(TaskRows):
    """Encoded texts and a number for each."""

    values: NDArray[np.float32]  # [n]

    def __post_init__(self) -> None:
        _one_each(len(self.texts), len(self.values), "numbers")

    def batch(self, planned: PlannedBatch) -> ValueBatch:
        values = with_filler(np.asarray(self.values, np.float32), planned, math.nan)
        return ValueBatch(**self.texts.tensors(planned), values=values, valued=len(planned.rows))


def _one_each(rows: int, given: int, what: str) -> None:
    if rows != given:
        raise QkvError(f"Each text has one of the {what}, but there are {rows} texts and {given} {what}.")
