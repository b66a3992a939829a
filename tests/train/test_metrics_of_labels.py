"""Figures of decisions and numbers: equal to scikit-learn's and scipy's, and by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import QkvError
from qkv.train.metrics_of_labels import accuracy, macro_f1, matthews, pearson, ranks, spearman

GOLDEN = json.loads((Path(__file__).parent / "fixtures" / "metric_scores.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["labels"], ids=str)
def test_decisions_score_as_scikit_learn_has_it(case):
    for metric in (accuracy, macro_f1, matthews):
        assert metric(case["said"], case["right"]) == pytest.approx(case[metric.__name__], abs=1e-12)


@pytest.mark.parametrize("case", GOLDEN["numbers"], ids=str)
def test_numbers_correlate_as_scipy_has_it(case):
    for metric in (pearson, spearman):
        assert metric(case["said"], case["right"]) == pytest.approx(case[metric.__name__], abs=1e-12)


def test_two_classes_by_hand():
    said, right = [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 1]  # tp 2, fp 1, tn 2, fn 1
    assert accuracy(said, right) == pytest.approx(4 / 6)
    assert macro_f1(said, right) == pytest.approx(4 / 6)
    assert matthews(said, right) == pytest.approx((2 * 2 - 1 * 1) / 9)
    assert matthews(right, right) == 1
    assert matthews([1 - label for label in right], right) == -1
    assert matthews([1, 1, 1], [0, 1, 0]) == 0


def test_ranks_are_shared_by_equals():
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1)
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert math.isnan(pearson([1, 1], [1, 2]))


def test_scores_need_as_many_of_both():
    with pytest.raises(QkvError, match="2 and 1"):
        accuracy([1, 2], [1])
    with pytest.raises(QkvError, match="0 and 0"):
        matthews([], [])
    with pytest.raises(QkvError, match="two examples"):
        pearson([1.0], [1.0])
