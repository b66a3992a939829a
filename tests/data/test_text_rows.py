"""Encoded texts as rows: segments where there are any, and every row where it belongs."""

import numpy as np
import pytest

from qkv.data.batches import Batches
from qkv.data.encoding import Encoding
from qkv.data.labelled import ClassRows
from qkv.data.plan import FixedShapes, TokenBudget
from qkv.data.text_rows import TextRows
from qkv.errors import QkvError


def encoding(ids, segments, row=0) -> Encoding:
    count = len(ids)
    nothing = (None,) * count
    return Encoding(tuple(ids), tuple(segments), ((0, 0),) * count, nothing, nothing, (False,) * count, row)


PAIRS = [encoding([1, 5, 2, 6, 2], [0, 0, 0, 1, 1], row=3), encoding([1, 7, 2], [0, 0, 0], row=4)]


def test_a_batch_cell_by_cell():
    rows = TextRows.from_encodings(PAIRS, pad=9)
    assert rows.original.tolist() == [3, 4]
    (batch,) = Batches(rows, FixedShapes(21, (6,)))
    order = np.argsort(-batch.lengths.numpy(), kind="stable")
    assert batch.ids[order].tolist() == [[1, 5, 2, 6, 2, 9], [1, 7, 2, 9, 9, 9], [1, 9, 9, 9, 9, 9]]
    assert batch.segments is not None
    assert batch.segments[order].tolist() == [[0, 0, 0, 1, 1, 0], [0] * 6, [0] * 6]
    assert sorted(batch.lengths.tolist()) == [1, 3, 5]


def test_segments_are_left_out_where_there_are_none_or_none_are_wanted():
    assert TextRows.from_encodings(PAIRS[1:], pad=0).segments is None
    rows = ClassRows(TextRows.from_encodings(PAIRS, pad=0), np.array([0, 1]))
    assert rows.texts.segments is not None
    without = rows.without_segments()
    assert without.texts.segments is None
    assert without.labels is rows.labels
    (batch,) = Batches(without, TokenBudget(100))
    assert batch.segments is None
    assert batch.to("meta").segments is None


def test_no_text_is_refused():
    with pytest.raises(QkvError, match="no text"):
        TextRows.from_encodings([], pad=0)
