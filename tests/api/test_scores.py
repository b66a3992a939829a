"""Metrics by name over held-out pairs."""

import sys

import pytest

from qkv.api.scores import METRICS, Scores
from qkv.errors import QkvError

PAIRS = [("cat", "K AE T"), ("a", "AH"), ("a", "EY"), ("dog", "D AO G")]


def test_every_target_of_a_source_is_right() -> None:
    scores = Scores(PAIRS, ["per", "ser"])
    assert scores.sources == ["cat", "a", "dog"]
    assert scores.of(["K AE T", "EY", "D AO G"]) == {"per": 0.0, "ser": 0.0}
    assert scores.of(["K AE T", "EY", "D AA G"]) == {"per": pytest.approx(1 / 7), "ser": pytest.approx(1 / 3)}


def test_only_so_many_sources_are_decoded() -> None:
    assert Scores(PAIRS, ["cer"], limit=2).sources == ["cat", "a"]
    assert Scores(PAIRS, ["cer"], limit=None).sources == ["cat", "a", "dog"]


@pytest.mark.parametrize("name", METRICS)
def test_a_perfect_output_is_better_than_a_wrong_one(name: str) -> None:
    pairs = [("1", "the cat sat on the mat"), ("2", "a dog ran far away from here")]
    scores = Scores(pairs, [name])
    right, wrong = (scores.of(outputs)[name] for outputs in ([target for _, target in pairs], ["no", "never"]))
    assert right > wrong if METRICS[name].better == "higher" else right < wrong


def test_an_unknown_metric_is_answered_with_the_nearest() -> None:
    with pytest.raises(QkvError, match="did you mean chrf"):
        Scores(PAIRS, ["chfr"])


def test_a_metric_that_cannot_be_had_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(QkvError, match="pip install"):
        Scores(PAIRS, ["bleu"])
