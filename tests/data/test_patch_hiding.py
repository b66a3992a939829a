"""Which patches are hidden, and how."""

import numpy as np
import pytest
import torch

from qkv.data.patch_hiding import PatchHiding, every_other
from qkv.errors import QkvError

ROWS, PATCHES = 200, 64


def test_half_of_every_picture_is_hidden_in_three_ways() -> None:
    hidden = PatchHiding().draw(ROWS, PATCHES, np.random.default_rng(0), torch.zeros(1))
    told = torch.zeros(ROWS * PATCHES, dtype=torch.bool)
    told[hidden.places] = True
    assert told.view(ROWS, PATCHES).sum(1).tolist() == [32] * ROWS
    own = torch.arange(ROWS * PATCHES).view(ROWS, PATCHES)
    replaced = hidden.sources != own
    assert not (hidden.masked & replaced).any()
    assert not ((hidden.masked | replaced).flatten() & ~told).any()  # what is not asked about is seen
    count = len(hidden.places)
    assert hidden.masked.sum() / count == pytest.approx(0.8, abs=0.02)
    assert replaced.sum() / count == pytest.approx(0.1, abs=0.02)


def test_each_patch_is_hidden_as_often_as_any_other() -> None:
    hidden = PatchHiding(0.25).draw(2000, 8, np.random.default_rng(1), torch.zeros(1))
    shares = torch.bincount(hidden.places % 8, minlength=8) / 2000
    torch.testing.assert_close(shares, torch.full((8,), 0.25), atol=0.04, rtol=0)


def test_the_same_seed_hides_the_same_and_filler_is_left_alone() -> None:
    plain, filled = (PatchHiding().draw(4, 9, np.random.default_rng(3), torch.zeros(1), filler) for filler in (0, 2))
    assert torch.equal(plain.places, filled.places)
    assert torch.equal(plain.masked, filled.masked[:4])
    assert torch.equal(plain.sources, filled.sources[:4])
    assert not filled.masked[4:].any()
    assert filled.sources.shape == (6, 9)
    assert torch.equal(filled.sources[4:].flatten(), torch.arange(36, 54))


def test_two_halves_of_a_chessboard_hide_everything_once() -> None:
    first, second = (every_other(2, (3, 5), number, torch.device("cpu")) for number in (0, 1))
    assert torch.equal(first.masked, ~second.masked)
    assert first.masked[0].tolist()[:6] == [True, False, True, False, True, False]
    assert torch.equal(first.places, first.masked.flatten().nonzero().flatten())


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.5}, {"masked": 0.95}, {"replaced": -0.1}])
def test_shares_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(QkvError, match="share of the patches"):
        PatchHiding(**wrong)
