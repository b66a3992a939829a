"""Texts in line: every one once and whole, like lengths together, never more tokens than asked for."""

import numpy as np
import pytest
import torch

from qkv.data.lines import line_batches
from qkv.data.text_rows import TextRows
from qkv.data.token_rows import TokenRows
from qkv.parts.attention.in_line import InLine

TEXTS = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 10], [11, 12, 13], [14, 15]]


def rows(segments: bool = False) -> TextRows:
    beside = TokenRows.from_lists([[token % 2 for token in text] for text in TEXTS], 0)
    return TextRows(TokenRows.from_lists(TEXTS, 0), beside if segments else None, np.arange(10, 16))


@pytest.mark.parametrize("most", [1, 4, 6, 100])
def test_every_text_comes_once(most: int) -> None:
    found = {}
    for places, batch in line_batches(rows(segments=True), most):
        assert batch.segments is not None
        assert batch.ids.shape[1] == sum(batch.lengths) <= max(most, max(batch.lengths))
        assert list(batch.lengths) == sorted(batch.lengths, reverse=True)
        assert torch.equal(batch.segments, batch.ids % 2)
        found |= dict(zip(places.tolist(), (part.tolist() for part in batch.ids[0].split(batch.lengths)), strict=True))
    assert found == dict(zip(range(10, 16), TEXTS, strict=True))


def test_what_is_said_of_the_tokens_is_what_a_model_would_say() -> None:
    (_, batch), *_ = line_batches(rows(), 9)
    assert batch.lengths == (4, 3)
    line = InLine.of(batch.lengths)
    for name in ("documents", "positions", "bounds"):
        expected = getattr(line, name)
        assert torch.equal(getattr(batch, name), expected)
        assert getattr(batch, name).dtype == expected.dtype
