"""Answers to tokens and back, through windows, and the choice to give none."""

from dataclasses import replace

import numpy as np
import pytest

from qkv.data.answers import SpanRows, best_threshold, find_answers, span_in
from qkv.data.batches import Batches
from qkv.data.encoding import Encoding
from qkv.data.plan import FixedShapes
from qkv.data.questions import Answer, Question
from qkv.errors import QkvError

CONTEXT = "The quick cat sat on a mat."
WORDS = [(0, 3), (4, 9), (10, 13), (14, 17), (18, 20), (21, 22), (23, 27)]


def window(first: int, last: int, row: int = 0) -> Encoding:
    """[CLS] q [SEP] words first..last of the context [SEP]"""
    words = WORDS[first:last]
    offsets = ((0, 0), (0, 1), (0, 0), *words, (0, 0))
    sides = (None, 0, None, *[1] * len(words), None)
    count = len(offsets)
    special = tuple(side is None for side in sides)
    return Encoding(tuple(range(count)), (0,) * count, offsets, (None,) * count, sides, special, row)


def test_an_answer_is_the_tokens_that_touch_it():
    assert span_in(window(0, 7), Answer("quick cat", 4)) == (4, 5)
    assert span_in(window(0, 7), Answer("mat", 23)) == (9, 9)  # the token is "mat."
    assert span_in(window(0, 7), Answer(" cat ", 9)) == (5, 5)
    assert span_in(window(1, 4), Answer("quick cat", 4)) == (3, 4)


def test_a_window_without_the_whole_answer_has_none():
    assert span_in(window(2, 7), Answer("quick cat", 4)) == (0, 0)
    assert span_in(window(0, 2), Answer("quick cat", 4)) == (0, 0)
    assert span_in(window(4, 7), Answer("quick cat", 4)) == (0, 0)


def test_rows_say_where_the_answer_is():
    questions = [Question("q", CONTEXT, (Answer("cat", 10), Answer("mat", 23))), Question("q", CONTEXT)]
    rows = SpanRows.from_encodings([window(0, 4), window(3, 7), window(0, 7, row=1)], questions, pad=0)
    assert rows.starts.tolist() == rows.ends.tolist() == [5, 0, 0]
    assert rows.original.tolist() == [0, 0, 1]
    (batch,) = Batches(rows, FixedShapes(17 * 5, (16,)))
    assert sorted(batch.starts.tolist()) == [-1, -1, 0, 0, 5]
    assert batch.asked == 3


def test_rows_must_begin_with_a_token_of_their_own():
    bare = replace(window(0, 4), special=(False,) * 8)
    with pytest.raises(QkvError, match=r"\[CLS\]"):
        SpanRows.from_encodings([bare], [Question("q", CONTEXT)], pad=0)


def scores(length, **high):
    found = np.zeros(length)
    for slot, score in high.items():
        found[int(slot[1:])] = score
    return found


def test_the_best_stretch_of_all_windows_wins():
    windows = [window(0, 4), window(3, 7)]
    starts = [scores(8, _4=3.0), scores(8, _4=5.0, _0=1.0)]
    ends = [scores(8, _5=3.0), scores(8, _4=1.0, _6=2.5)]
    (found,) = find_answers(windows, starts, ends, [CONTEXT])
    assert found.text == "on a mat."
    assert found.score == 7.5
    assert found.none == 0.0 - 7.5  # the first window has no answer with 0, the second with 1: the least counts


def test_the_end_never_comes_before_the_start_and_length_is_bounded():
    starts, ends = [scores(11, _8=9.0, _3=1.0)], [scores(11, _3=9.0, _9=0.5)]
    (found,) = find_answers([window(0, 7)], starts, ends, [CONTEXT])
    assert found.text == "The"
    (short,) = find_answers([window(0, 7)], [scores(11, _3=9.0)], [scores(11, _9=9.0, _4=1.0)], [CONTEXT], longest=2)
    assert short.text == "The quick"


def test_no_answer_where_the_first_token_is_better_by_more_than_the_threshold():
    starts, ends = [scores(11, _0=3.0, _5=2.0)], [scores(11, _0=1.0, _5=1.0)]
    (found,) = find_answers([window(0, 7)], starts, ends, [CONTEXT])
    assert (found.text, found.best, found.none) == ("", "cat", 1.0)
    (found,) = find_answers([window(0, 7)], starts, ends, [CONTEXT], threshold=1.0)
    assert found.text == "cat"


def test_scores_must_be_there():
    with pytest.raises(QkvError, match="as many scores"):
        find_answers([window(0, 7)], [], [], [CONTEXT])
    with pytest.raises(QkvError, match="Question 1 has no scores"):
        find_answers([window(0, 7)], [np.zeros(11)], [np.zeros(11)], [CONTEXT, CONTEXT])


def test_the_threshold_is_where_most_questions_are_right():
    none = [-3.0, -1.0, 0.5, 2.0, 4.0]
    right, without = [1, 1, 1, 0, 0], [0, 0, 0, 1, 1]
    threshold = best_threshold(none, right, without)
    assert 0.5 <= threshold < 2.0
    assert best_threshold(none, [0] * 5, [1] * 5) < -3.0
    assert best_threshold(none, [1] * 5, [0] * 5) >= 4.0
    with pytest.raises(QkvError, match="held-out"):
        best_threshold([], [], [])
