"""Groups of texts in one batch: the first of every group, then the second of every group."""

import numpy as np
import pytest
import torch

from qkv.data.batches import Batches
from qkv.data.contrast import GroupRows
from qkv.data.plan import FixedShapes, RowCount
from qkv.data.text_rows import TextRows
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError


def texts(sort: int, count: int = 10) -> TextRows:
    """Text i of a sort is made of the number 100 · sort + i."""
    rows = [[100 * sort + i] * (1 + (i * sort) % 5) for i in range(count)]
    return TextRows(TokenRows.from_lists(rows, 0), None, np.arange(count))


def test_groups_stay_together():
    rows = GroupRows((texts(1), texts(2), texts(3)), np.arange(10, dtype=np.float32))
    seen = []
    for batch in Batches(rows, RowCount(4)):
        assert batch.texts == 3
        assert len(batch.ids) == 3 * batch.groups
        firsts = batch.ids[:, 0].view(3, batch.groups)
        assert torch.equal(firsts[1] - firsts[0], torch.full((batch.groups,), 100))
        assert torch.equal(firsts[2] - firsts[0], torch.full((batch.groups,), 200))
        assert torch.equal(batch.values, (firsts[0] - 100).float())
        assert batch.lengths.max() == batch.ids.shape[1]
        seen += firsts[0].tolist()
    assert sorted(seen) == list(range(100, 110))


def test_groups_that_do_not_match_are_refused():
    with pytest.raises(QkvError, match=r"\[10, 9\]"):
        GroupRows((texts(1), texts(2, 9)))
    with pytest.raises(QkvError, match="two texts"):
        GroupRows((texts(1),))
    with pytest.raises(QkvError, match="3 values"):
        GroupRows((texts(1), texts(2)), np.zeros(3))
    with pytest.raises(QkvError, match="filler"):
        list(Batches(GroupRows((texts(1), texts(2))), FixedShapes(1000, (10,))))
