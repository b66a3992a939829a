"""Bands and moments of sounds hidden, noise added, and two sounds made one."""

import numpy as np
import pytest
import torch

from qkv.data.augment import InTurn, Noise, Roll, SpecAugment, WaveMixing
from qkv.errors import QkvError


def spectra(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 1, 20, 30, generator=torch.Generator().manual_seed(0)).abs() + 1


def runs(hidden: np.ndarray) -> int:
    """How many stretches of True there are."""
    return int((np.diff(hidden.astype(int), prepend=0) == 1).sum())


@pytest.mark.parametrize("masks", [1, 3])
def test_stretches_of_bands_and_of_frames_are_hidden(masks: int) -> None:
    """Each mask is one stretch, no longer than its bound, and what it covers is hidden over the whole other side."""
    widest_bands = widest_frames = 0
    for seed in range(30):
        pictures = spectra()
        found = SpecAugment(bands=5, frames=7, masks=masks)(pictures, np.random.default_rng(seed))
        assert torch.equal(found[found != 0], pictures[found != 0])
        for picture in found[:, 0].numpy() == 0:
            bands, frames = picture.all(1), picture.all(0)
            assert np.array_equal(picture, bands[:, None] | frames[None])
            assert runs(bands) <= masks
            assert runs(frames) <= masks
            if masks == 1:
                widest_bands, widest_frames = max(widest_bands, bands.sum()), max(widest_frames, frames.sum())
    if masks == 1:
        assert (widest_bands, widest_frames) == (5, 7)


def test_every_width_and_every_place_is_as_likely() -> None:
    draw = np.random.default_rng(0)
    pictures = torch.ones(4000, 1, 4, 10)
    hidden = (SpecAugment(bands=0, frames=3)(pictures, draw)[:, 0, 0] == 0).numpy()
    widths = np.bincount(hidden.sum(1), minlength=4) / 4000
    np.testing.assert_allclose(widths, 0.25, atol=0.03)
    ones = hidden[hidden.sum(1) == 1].argmax(1)
    np.testing.assert_allclose(np.bincount(ones, minlength=10) / len(ones), 0.1, atol=0.04)


def test_no_more_than_a_share_of_the_frames_is_hidden_at_once() -> None:
    found = SpecAugment(bands=0, frames=1000, most=0.2)(torch.ones(200, 1, 4, 30), np.random.default_rng(0))
    assert int((found[:, 0, 0] == 0).sum(1).max()) == 6


def test_noise_is_even_and_as_strong_as_drawn() -> None:
    added = Noise(0.5)(torch.zeros(200, 1, 8, 9), np.random.default_rng(0)).flatten(1)
    assert float(added.min()) >= 0
    strongest = added.amax(1)
    assert 0.45 < float(strongest.max()) <= 0.5
    np.testing.assert_allclose(float(strongest.mean()), 0.25, atol=0.03)
    assert torch.equal(Noise(0.0)(torch.ones(2, 5), np.random.default_rng(0)), torch.ones(2, 5))


@pytest.mark.parametrize("shape", [(50, 12), (50, 1, 3, 12)])
def test_a_roll_moves_all_bands_together(shape: tuple[int, ...]) -> None:
    sounds = torch.arange(12.0).expand(shape)
    found = Roll(2)(sounds, np.random.default_rng(0))
    moves = set()
    for each in found:
        rows = each.reshape(-1, 12)
        move = int(rows[0].argmin())
        moves.add(move if move < 6 else move - 12)
        assert all(torch.equal(row, torch.arange(12.0).roll(move)) for row in rows)
    assert moves == {-2, -1, 0, 1, 2}


def test_mixed_waves_are_their_equation() -> None:
    waves = torch.randn(40, 25) + 3
    mixed = WaveMixing(alpha=10, probability=0.5)(waves, np.random.default_rng(0), 36)
    level = waves - waves.mean(1, keepdim=True)
    share = mixed.kept[:, None]
    expected = torch.where(share < 1, share * level + (1 - share) * level[mixed.partners], waves)
    torch.testing.assert_close(mixed.images, expected)
    assert 8 < int((mixed.kept < 1).sum()) < 28
    assert torch.equal(mixed.images[36:], waves[36:])  # filler
    assert int(mixed.partners[:36].max()) < 36
    whole = mixed.kept == 1
    assert torch.equal(mixed.partners[whole], torch.arange(40)[whole])


def test_shares_of_a_mixture_follow_the_beta_distribution() -> None:
    shares = WaveMixing(alpha=10, probability=1.0)(torch.randn(4000, 2), np.random.default_rng(0)).kept.numpy()
    np.testing.assert_allclose(shares.mean(), 0.5, atol=0.01)
    np.testing.assert_allclose(shares.var(), 1 / 84, rtol=0.1)  # 1 / (4 (2 α + 1))


def test_the_same_seed_gives_the_same_sounds() -> None:
    steps = InTurn((SpecAugment(bands=4, frames=5), Noise(), Roll()))
    first, second = (steps(spectra(), np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_what_cannot_be_is_told() -> None:
    with pytest.raises(QkvError, match="widths from 0 on"):
        SpecAugment(bands=-1)
    with pytest.raises(QkvError, match="pictures of sounds"):
        SpecAugment()(torch.zeros(2, 9), np.random.default_rng(0))
    with pytest.raises(QkvError, match="0 or more"):
        Noise(-0.1)
    with pytest.raises(QkvError, match="0 frames or more"):
        Roll(-1)
    with pytest.raises(QkvError, match="α above 0"):
        WaveMixing(alpha=0)
    with pytest.raises(QkvError, match="sample by sample"):
        WaveMixing()(torch.zeros(2, 1, 3, 3), np.random.default_rng(0))
