"""Answers of two machines: words in their places, and numbers."""

import json

from tools.gpu_verify.compare import likeness


def lines(*answers: object) -> str:
    return "".join(json.dumps(each) + "\n" for each in answers)


def test_what_is_equal_is_equal() -> None:
    found = likeness(
        lines({"input": "a", "label": "x", "probability": 0.5}), lines({"input": "a", "label": "x", "probability": 0.5})
    )
    assert found == (1.0, 0.0)
    assert found.is_enough(numbers=True)


def test_words_are_compared_in_their_places_and_what_was_asked_does_not_count() -> None:
    found = likeness(
        lines({"input": "a b c", "text": "one two three four"}),
        lines({"input": "a b c", "text": "one two 3 four five"}),
    )
    assert found.words == 3 / 5
    assert not found.is_enough(numbers=False)


def test_numbers_count_where_words_are_equal() -> None:
    one, other = {"label": "x", "all": {"x": 3.0, "y": 4.0}}, {"label": "x", "all": {"x": 3.0, "y": 4.5}}
    found = likeness(lines(one, {"label": "y", "all": [1]}), lines(other, {"label": "z", "all": [9]}))
    assert round(found.apart, 3) == round(0.5 / (9 + 4.5**2) ** 0.5, 3)
    assert found.words == 0.5


def test_vectors_of_other_sizes_and_missing_lines_are_far_apart() -> None:
    assert likeness(lines([1.0, 2.0]), lines([1.0])).apart == 1.0
    assert not likeness(lines([1.0]), lines([1.0], [2.0])).is_enough(numbers=False)
    assert not likeness("", "").is_enough(numbers=False)  # nothing was said
