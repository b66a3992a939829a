"""Between measured points."""

import pytest

from qkv.train.cost.grid import Grid, between


def test_times_between_points_follow_a_power() -> None:
    points = [(10.0, 1.0), (1000.0, 100.0)]
    assert between(points, 100.0) == pytest.approx(10.0)
    assert between(points, 10_000.0) == pytest.approx(1000.0)  # beyond, in proportion
    assert between(points, 1.0) == 1.0  # below, as the first


def test_rates_between_points_of_a_grid() -> None:
    grid = Grid({(1.0, 1.0): 1.0, (1.0, 4.0): 4.0, (4.0, 1.0): 4.0, (4.0, 4.0): 16.0})
    assert grid.at(2.0, 2.0) == pytest.approx(4.0)
    assert grid.at(4.0, 2.0) == pytest.approx(8.0)
    assert grid.at(100.0, 0.1) == pytest.approx(4.0)  # outside, as the edge


def test_a_point_that_was_not_measured_is_as_its_neighbour() -> None:
    grid = Grid({(1.0, 1.0): 1.0, (1.0, 4.0): 4.0, (4.0, 1.0): 2.0})
    assert grid.at(4.0, 4.0) in (2.0, 4.0)
