"""Spans of hidden frames, and the frames that hidden ones are told apart from."""

import numpy as np
import pytest
import torch

from qkv.data.span_hiding import SpanHiding, draw_distractors
from qkv.errors import QkvError


def runs(row: torch.Tensor) -> list[int]:
    """Lengths of the runs of hidden frames."""
    text = "".join("x" if each else " " for each in row.tolist())
    return [len(run) for run in text.split()]


def test_spans_have_their_length_and_stay_inside_their_row() -> None:
    random = np.random.default_rng(0)
    lengths = torch.tensor([50, 20, 9, 5, 0])
    for _ in range(50):
        hidden = SpanHiding(0.3, 6, 1).draw(lengths, 50, random)
        assert hidden.shape == (5, 50)
        for row, length in zip(hidden, lengths.tolist(), strict=True):
            assert not row[length:].any()
            assert all(run >= 6 for run in runs(row))
        assert hidden[:3].any(1).all()  # `least`
        assert not hidden[3:].any()  # no room


def test_the_number_of_spans_is_right_in_the_mean() -> None:
    random = np.random.default_rng(0)
    hidden = torch.stack([SpanHiding(0.25, 1).draw(torch.tensor([30]), 30, random) for _ in range(2000)])
    assert abs(hidden.float().mean() - 0.25) < 0.01
    counts = set(hidden.sum((1, 2)).tolist())
    assert counts == {7, 8}


def test_a_share_of_all_does_not_hang_and_a_share_of_none_hides_none() -> None:
    random = np.random.default_rng(0)
    assert SpanHiding(1.0, 1).draw(torch.tensor([30]), 30, random).all()
    assert not SpanHiding(0.0, 3).draw(torch.tensor([30]), 30, random).any()
    assert SpanHiding(0.0, 3, 2).draw(torch.tensor([30]), 30, random).sum() >= 4
    for wrong in ((-0.1, 3), (1.1, 3), (0.5, 0)):
        with pytest.raises(QkvError, match="share from 0 to 1"):
            SpanHiding(*wrong)


def test_distractors_are_other_hidden_frames_of_the_row_all_equally_likely() -> None:
    random = np.random.default_rng(0)
    hidden = torch.zeros(3, 12).bool()
    hidden[0, [1, 4, 5, 9]], hidden[1, 7] = True, True
    found = draw_distractors(hidden, 3000, random)
    assert found.shape == (3, 12, 3000)
    for place in (1, 4, 5, 9):
        values, counts = found[0, place].unique(return_counts=True)
        assert values.tolist() == [other for other in (1, 4, 5, 9) if other != place]
        assert (counts - 1000).abs().max() < 120
    assert (found[1, 7] == 7).all()
    assert (found[2] == 0).all()
