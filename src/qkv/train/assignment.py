"""The assignment problem: one column for each row, no column twice, at the least total cost. [kuhn1955]

Shapes: n rows, m columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.errors import QkvError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def assign(costs: NDArray[Any]) -> tuple[Ints, Ints]:
    """The rows and the columns of the cheapest pairs, in the order of rows; of the shorter side all are paired.

    Row after row finds the cheapest way to a free column, along which those that stand in its way move on. The prices
    of rows and columns (the dual variables of the problem) keep all remaining costs at 0 or above, so that the search
    is Dijkstra's, and the result the best there is. [crouse2016 §III]
    """
    costs = costs.astype(np.float64)
    if costs.ndim != 2 or not np.isfinite(costs).all():
        raise QkvError("Costs to assign by must be a table of finite numbers.")
    if costs.shape[0] > costs.shape[1]:
        columns, rows = assign(costs.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    count = costs.shape[0]
    if count == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    cheapest = costs.argmin(1)
    if len(np.unique(cheapest)) == count:  # nobody stands in another's way
        return np.arange(count), cheapest.astype(np.int64)
    return np.arange(count), _column_of_each_row(costs)


def assign_many(costs: NDArray[Any], there: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The same for many tables of rows and columns [k n m], of whose columns only some are `there` [k m].

    Triples of table, row and column, ordered by table and then by row. Tables in which no two columns want the same
    row, which are most of them once a model has learned where to look, are done all at once.
    """
    costs = costs.astype(np.float64)
    if costs.shape[0] == 0 or costs.shape[1] == 0 or not there.any():
        return np.zeros((0, 3), np.int64)
    cheapest = costs.argmin(1)  # [k m]
    # Columns that are not there get rows beyond the last, each another, so that none stands in another's way.
    wished = np.where(there, cheapest, costs.shape[1] + np.arange(costs.shape[2]))
    ordered = np.sort(wished, 1)
    finite = np.isfinite(np.where(there[:, None], costs, 0)).all((1, 2))
    alone: NDArray[np.bool_] = np.logical_and((np.diff(ordered, axis=1) > 0).all(1), finite)  # [k]
    table, column = np.nonzero(there & alone[:, None])
    parts = [np.stack([table, cheapest[table, column], column], 1)]
    for number in np.flatnonzero(~alone):
        columns = np.flatnonzero(there[number])
        rows, chosen = assign(costs[number][:, columns])
        parts.append(np.stack([np.full(len(rows), number), rows, columns[chosen]], 1))
    triples = np.concatenate(parts)
    return triples[np.lexsort((triples[:, 1], triples[:, 0]))]


def _column_of_each_row(costs: Floats) -> Ints:
    """costs [n m], n ≤ m → [n]"""
    rows, columns = costs.shape
    row_price, column_price = np.zeros(rows), np.zeros(columns)
    column_of, row_of = np.full(rows, -1), np.full(columns, -1)
    for start in range(rows):
        way, came_from = (
            np.full(columns, np.inf),
            np.full(columns, -1),
        )  # the cheapest way to each column, and its last row
        reached = np.zeros(columns, bool)
        met, row, length = [], start, 0.0
        while True:
            met.append(row)
            through = length + costs[row] - row_price[row] - column_price
            better = ~reached & (through < way)
            way[better], came_from[better] = through[better], row
            column = int(np.where(reached, np.inf, way).argmin())
            length, reached[column] = way[column], True
            if row_of[column] < 0:
                break
            row = int(row_of[column])
        row_price[start] += length
        for row in met[1:]:
            row_price[row] += length - way[column_of[row]]
        column_price[reached] -= length - way[reached]
        while True:  # each on the way takes the column that the next one had found
            row = int(came_from[column])
            row_of[column] = row
            column_of[row], column = column, int(column_of[row])
            if row == start:
                break
    return column_of.astype(np.int64)
