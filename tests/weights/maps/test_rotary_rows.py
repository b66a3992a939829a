"""Rows in pairs: neighbours go where halves want them, and back."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.weights.maps.rotary_rows import PairedRows

RULE = PairedRows("theirs", "ours", heads=2)


def test_neighbours_become_halves_within_each_head() -> None:
    (rows,) = RULE.to_ours([torch.tensor([0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15])])
    assert rows.tolist() == [0, 2, 4, 1, 3, 5, 10, 12, 14, 11, 13, 15]


def test_the_way_back_is_the_way_back() -> None:
    matrix = torch.randn(12, 7)
    assert torch.equal(RULE.to_theirs(RULE.to_ours([matrix]))[0], matrix)
    assert not torch.equal(RULE.to_ours([matrix])[0], matrix)


@pytest.mark.parametrize("shape", [(), (6,), (10, 4)])
def test_rows_that_are_not_pairs_in_heads_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(QkvError, match="not 2 heads of pairs"):
        RULE.to_ours([torch.zeros(shape)])
