"""How good decisions and numbers are: accuracy, F1, Matthews' and the correlation coefficients.

Shapes: n examples, c classes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkv.errors import QkvError

Floats = NDArray[np.float64]


def accuracy(said: Sequence[int], right: Sequence[int]) -> float:
    """The share of right decisions."""
    table = confusion(said, right)
    return float(np.trace(table) / table.sum())


def macro_f1(said: Sequence[int], right: Sequence[int]) -> float:
    """The mean over classes of 2·hits / (times said + times right): a rare class counts as much as a frequent one.

    Over the classes that occur at all.
    """
    table = confusion(said, right)
    occurs = table.sum(0) + table.sum(1)  # [c]
    hits = np.diag(table)
    return float((2 * hits / occurs).mean())


def matthews(said: Sequence[int], right: Sequence[int]) -> float:
    """Matthews' correlation, from -1 to 1, for any number of classes; 0 where only one class is said or right.

    For two classes it is (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)) [matthews1975].
    """
    table = confusion(said, right)
    examples, hits = table.sum(), np.trace(table)
    times_right, times_said = table.sum(1), table.sum(0)  # [c] each
    together = hits * examples - times_right @ times_said
    spread = (examples**2 - times_said @ times_said) * (examples**2 - times_right @ times_right)
    return float(together / np.sqrt(spread)) if spread else 0.0


def pearson(said: Sequence[float], right: Sequence[float]) -> float:
    """How straight the line is through said against right numbers, from -1 to 1; NaN where either never changes."""
    x, y = _numbers(said, right)
    x, y = x - x.mean(), y - y.mean()
    spread = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / spread) if spread else float("nan")


def spearman(said: Sequence[float], right: Sequence[float]) -> float:
    """Pearson's coefficient of the ranks: whether the order is right, whatever the numbers."""
    x, y = _numbers(said, right)
    return pearson(ranks(x).tolist(), ranks(y).tolist())


def ranks(values: Floats) -> Floats:
    """Ranks from 1 on; equal values share the mean of theirs. [n] → [n]"""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # the last rank of each group of equals
    shared: Floats = (last - (counts - 1) / 2)[group]
    return shared


def confusion(said: Sequence[int], right: Sequence[int]) -> Floats:
    """How often class j was said where i was right, for the classes that occur. [c c]"""
    mine, theirs = _matched(said, right)
    classes, places = np.unique(np.concatenate([theirs, mine]), return_inverse=True)
    table = np.zeros((len(classes), len(classes)))
    np.add.at(table, (places[: len(theirs)], places[len(theirs) :]), 1)
    return table


def _numbers(said: Sequence[float], right: Sequence[float]) -> tuple[Floats, Floats]:
    x, y = _matched(said, right)
    if len(x) < 2:
        raise QkvError("A correlation needs two examples at least.")
    return np.asarray(x, np.float64), np.asarray(y, np.float64)


def _matched(first: ArrayLike, second: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    x, y = np.asarray(first), np.asarray(second)
    if len(x) != len(y) or not len(x):
        raise QkvError(
            f"A score needs a right value for each said one, and one at least, but there are {len(x)} and {len(y)}."
        )
    return x, y
