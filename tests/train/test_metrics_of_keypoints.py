import numpy as np
import pytest

from qkv.errors import QkvError
from qkv.train.metrics_of_keypoints import score_points


def test_points_near_enough_are_right():
    wanted = np.array([[[10.0, 10.0], [50.0, 50.0]], [[0.0, 0.0], [5.0, 5.0]]])
    found = wanted + np.array([[[3.0, 4.0], [20.0, 0.0]], [[1.0, 0.0], [9.0, 9.0]]])
    seen = np.array([[True, True], [True, False]])
    scores = score_points(found, wanted, seen, np.array([25.0, 4.0]), ("nose", "ear"))  # near: 5 and 0.8 pixels
    assert scores.share == pytest.approx(1 / 3)
    assert scores.by_name == {"nose": 0.5, "ear": 0.0}
    assert score_points(found, wanted, seen, np.array([25.0, 5.0]), ("nose", "ear")).by_name["nose"] == 1.0
    assert score_points(wanted, wanted, seen, np.array([1.0, 1.0]), ("nose", "ear"), near=0.01).share == 1.0


def test_a_point_that_is_nowhere_has_no_score():
    points = np.zeros((2, 2, 2))
    scores = score_points(points, points, np.array([[True, False], [True, False]]), np.ones(2), ("nose", "ear"))
    assert scores.by_name == {"nose": 1.0}


def test_what_cannot_be_scored_is_refused():
    points, seen, sizes = np.zeros((2, 3, 2)), np.ones((2, 3), bool), np.ones(2)
    names = ("a", "b", "c")
    for given in [
        (points[:1], points, seen, sizes, names),
        (points, points, seen[:, :2], sizes, names),
        (points, points, seen, sizes[:1], names),
        (points, points, seen, sizes, names[:2]),
        (points, points, ~seen, sizes, names),
        (points, points, seen, 0 * sizes, names),
    ]:
        with pytest.raises(QkvError):
            score_points(*given)
