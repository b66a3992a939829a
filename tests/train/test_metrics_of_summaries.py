"""ROUGE: equal to the well-known package's, and by hand."""

import json
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.train.metrics_of_summaries import (
    common_places,
    longest_common,
    rouge_l,
    rouge_l_of_sentences,
    rouge_n,
    words,
)

GOLDEN = json.loads((Path(__file__).parent / "fixtures" / "metric_scores.json").read_text())


def test_scores_are_those_of_the_reference_package():
    assert len(GOLDEN["rouge"]) == 40
    for case in GOLDEN["rouge"]:
        said, right = [case["said"]], [case["right"]]
        assert rouge_n(said, right, 1) == pytest.approx(case["rouge1"], abs=1e-12)
        assert rouge_n(said, right, 2) == pytest.approx(case["rouge2"], abs=1e-12)
        assert rouge_l(said, right) == pytest.approx(case["rougeL"], abs=1e-12)
        assert rouge_l_of_sentences(said, right) == pytest.approx(case["rougeLsum"], abs=1e-12)


def test_the_example_of_the_paper():
    """[lin2004 §3.1]: both share two pairs at most, but only the first keeps the order police … kill … gunman."""
    right = "police killed the gunman"
    # LCS "police the gunman" and "the gunman" of four words each
    assert rouge_l(["police kill the gunman"], [right]) == pytest.approx(3 / 4)
    assert rouge_l(["the gunman kill police"], [right]) == pytest.approx(2 / 4)
    assert rouge_n(["police kill the gunman"], [right], 2) == rouge_n(["the gunman kill police"], [right], 2)


def test_common_sequences():
    assert longest_common(["a", "b", "c", "d", "e"], ["x", "a", "c", "y", "e"]) == 3
    assert longest_common([], ["a"]) == longest_common(["a"], []) == 0
    assert common_places(["a", "b", "c", "d", "e"], ["x", "a", "c", "y", "e"]) == [0, 2, 4]
    assert words("Über-cool, isn't_it? 42") == ["über", "cool", "isn", "t", "it", "42"]


def test_the_nearest_reference_counts_and_summaries_are_averaged():
    assert rouge_n(["a b", "c"], [["x", "a b"], ["d"]], 1) == 0.5
    with pytest.raises(QkvError, match="one reference entry"):
        rouge_l(["a"], [])
