"""Flat rows give back what was put in, and padded rectangles are right in every cell."""

import numpy as np
import pytest

from qkv.data.token_rows import TokenRows, places_of, stretches_of

ROWS = [[5, 6, 7], [], [8], [9, 10, 11, 12, 13]]


def test_rows_come_back():
    rows = TokenRows.from_lists(iter(ROWS), pad=0)
    assert len(rows) == 4
    assert [rows[i] for i in range(4)] == ROWS
    assert rows[-1] == ROWS[-1]
    assert rows.lengths.tolist() == [3, 0, 1, 5]
    assert rows.ids.dtype == np.int32
    with pytest.raises(IndexError):
        rows[4]


def test_padded_rectangle():
    rows = TokenRows.from_lists(ROWS, pad=99)
    chosen = np.array([3, 0, 1, 3])
    padded = rows.padded(chosen, np.array([5, 3, 0, 2]), width=6)
    assert padded.dtype == np.int64
    assert padded.tolist() == [
        [9, 10, 11, 12, 13, 99],
        [5, 6, 7, 99, 99, 99],
        [99] * 6,
        [9, 10, 99, 99, 99, 99],
    ]


def test_rows_joined_and_padded_with_filler():
    rows = TokenRows.joined([TokenRows.from_lists([[1, 2]], 9), TokenRows.from_lists([[], [3]], 9)])
    assert [rows[i] for i in range(3)] == [[1, 2], [], [3]]
    ids, lengths = rows.rectangle(np.array([0, 2]), 3, filler=2)
    assert ids.tolist() == [[1, 2, 9], [3, 9, 9], [1, 9, 9], [1, 9, 9]]
    assert lengths.tolist() == [2, 1, 1, 1]


def test_places_of_stretches():
    assert places_of(np.array([5, 0, 7]), np.array([2, 3, 0])).tolist() == [5, 6, 0, 1, 2]


@pytest.mark.parametrize("most", [0, 2, 5])
@pytest.mark.parametrize(("before", "behind"), [((), ()), ((1,), (2,)), ((1, 2), ()), ((), (3, 4))])
def test_rows_are_shortened_and_framed(most, before, behind):
    rows = TokenRows.from_lists(ROWS, pad=9).shortened(most).between(before, behind)
    assert [rows[i] for i in range(4)] == [[*before, *row[:most], *behind] for row in ROWS]
    assert (rows.pad, rows.ids.dtype) == (9, np.int32)


def test_stretches_hold_no_more_than_asked_for_but_what_is_larger_alone():
    assert list(stretches_of(np.array([7, 2, 2, 0, 2, 1]), 4)) == [(0, 1), (1, 4), (4, 6)]
    assert list(stretches_of(np.array([], np.int64), 4)) == []
