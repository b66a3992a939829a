import itertools

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from qkv.errors import QkvError
from qkv.train.assignment import assign, assign_many


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (4, 4), (3, 9), (9, 3), (17, 17), (100, 12), (12, 100)])
@pytest.mark.parametrize("kind", ["real", "few whole numbers", "below zero", "one scale a column"])
def test_the_total_is_the_least_there_is(shape, kind):
    for seed in range(8):
        draw = np.random.default_rng([seed, *shape])
        costs = draw.normal(size=shape)
        if kind == "few whole numbers":  # many ties
            costs = draw.integers(0, 4, shape).astype(float)
        elif kind == "below zero":
            costs = -np.abs(costs) * 100
        elif kind == "one scale a column":  # everyone wants the same column
            costs = costs + 10.0 ** np.arange(shape[1]).clip(max=6)
        rows, columns = assign(costs)
        assert len(rows) == min(shape)
        assert len(set(rows.tolist())) == len(set(columns.tolist())) == min(shape)
        assert (np.diff(rows) > 0).all()
        best = costs[linear_sum_assignment(costs)].sum()
        np.testing.assert_allclose(costs[rows, columns].sum(), best, rtol=1e-12, atol=1e-12)


def test_small_tables_agree_with_trying_everything():
    draw = np.random.default_rng(0)
    for _ in range(50):
        costs = draw.normal(size=(4, 5))
        best = min(costs[range(4), order].sum() for order in itertools.permutations(range(5), 4))
        rows, columns = assign(costs)
        assert costs[rows, columns].sum() == pytest.approx(best)


def test_where_the_best_is_single_the_pairs_are_those_of_scipy():
    draw = np.random.default_rng(1)
    for _ in range(30):
        costs = draw.normal(size=(20, 7))
        for ours, theirs in zip(assign(costs), linear_sum_assignment(costs), strict=True):
            assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_assign_is_no_error(shape):
    assert [len(each) for each in assign(np.zeros(shape))] == [0, 0]


def test_costs_that_are_no_numbers_are_refused():
    for costs in (np.array([[np.nan]]), np.array([[np.inf, 1.0]]), np.zeros(3)):
        with pytest.raises(QkvError, match="a table of finite numbers"):
            assign(costs)


@pytest.mark.parametrize("shape", [(6, 20, 5), (40, 4, 6), (3, 1, 1), (5, 7, 0), (0, 3, 3)])
@pytest.mark.parametrize("crowded", [False, True])
def test_many_tables_are_assigned_as_each_alone(shape, crowded):
    draw = np.random.default_rng(shape)
    costs = draw.normal(size=shape)
    if crowded and costs.size:  # all want the first row
        costs[:, 0] -= 5
    there = draw.random((shape[0], shape[2])) < 0.7
    expected = []
    for number in range(shape[0]):
        columns = np.flatnonzero(there[number])
        rows, chosen = assign(costs[number][:, columns])
        expected += [[number, row, columns[column]] for row, column in zip(rows, chosen, strict=True)]
    assert assign_many(costs, there).tolist() == expected


def test_what_is_no_number_is_refused_among_many():
    costs = np.zeros((2, 3, 2))
    costs[1, 0, 1] = np.nan
    with pytest.raises(QkvError, match="finite"):
        assign_many(costs, np.ones((2, 2), bool))
    there = np.array([[True, True], [True, False]])
    assert len(assign_many(costs + np.arange(3)[:, None] * [[1, -1]], there)) == 3
