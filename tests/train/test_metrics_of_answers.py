"""Answers to questions: the examples and rules of SQuAD, worked by hand."""

import pytest

from qkv.errors import QkvError
from qkv.train.metrics_of_answers import answer_f1, exact_match, normalised, word_f1


def test_case_punctuation_articles_and_spaces_do_not_matter():
    assert normalised("  The  Denver-Broncos, (a team) ") == "denverbroncos team"
    assert normalised("an apple a day") == "apple day"
    assert normalised("Theatre") == "theatre"
    assert exact_match(["the Denver Broncos!"], [["Denver Broncos"]]) == 1.0


def test_words_in_common():
    # "Saint Bernadette" of "Saint Bernadette Soubirous": 2 shared, 2 said, 3 right
    assert word_f1("Saint Bernadette", "Saint Bernadette Soubirous") == pytest.approx(2 * 2 / 5)
    assert word_f1("cat cat", "cat") == pytest.approx(2 / 3)  # a word counts as often as both say it
    assert word_f1("dog", "cat") == 0.0


def test_the_best_of_several_right_answers_counts():
    said, right = ["in 1858", "no"], [["1858", "the year 1858"], ["yes"]]
    assert exact_match(said, right) == 0.0
    assert answer_f1(said, right) == pytest.approx((2 / 3 + 0) / 2)
    assert exact_match(["1858", "yes"], right) == 1.0


def test_no_answer_is_an_answer():
    assert exact_match(["", "something", ""], [[], [], ["something"]]) == pytest.approx(1 / 3)
    assert answer_f1(["", "something", ""], [[], [], ["something"]]) == pytest.approx(1 / 3)
    assert answer_f1(["the"], [["the"]]) == 1.0  # both normalise to nothing


def test_every_question_needs_an_entry():
    with pytest.raises(QkvError, match="1 and 2"):
        exact_match(["a"], [["a"], ["b"]])
