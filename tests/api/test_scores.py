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


@pytest.mark.parametrize(
    ("own", "others", "learned", "said"),
    [
        (2.436, {}, False, "It has not learned: per 2.44 is no better than the 1 of an empty output."),
        (1.0, {}, False, "no better than the 1 of an empty output"),
        (0.5, {}, True, "It has learned: per 0.5, where an empty output has 1."),
        (0.5, {"a table": ["K AE T", "AH", "D"]}, False, "no better than the 0.286 of a table"),
        (0.2, {"a table": ["K AE T", "AH", "D"]}, True, "where a table has 0.286"),
        (None, {}, False, "per none is no better"),
    ],
)
def test_a_model_that_is_no_better_than_none_has_not_learned(
    own: float | None, others: dict[str, list[str]], learned: bool, said: str
) -> None:
    verdict = Scores(PAIRS, ["per", "ser"]).verdict({"per": own, "ser": 0.0}, others)
    assert verdict[0] is learned
    assert said in verdict[1]


def test_the_verdict_knows_which_way_is_better() -> None:
    pairs = [("1", "the cat sat on the mat"), ("2", "a dog ran far away from here")]
    scores = Scores(pairs, ["chrf"])
    copied = {"the source as it is": ["the cat", "a dog"]}
    assert not scores.verdict({"chrf": 10.0}, copied)[0]
    assert scores.verdict({"chrf": 90.0}, copied)[0]
