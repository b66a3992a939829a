"""Resampling against a reference with the same filter, against what a filter must do, and block by block."""

import math

import pytest
import torch
from scipy.signal import resample_poly

from qkv.data.resampling import RATES, Resampler, phase_weights, resample
from qkv.errors import QkvError

PAIRS = [(44100, 16000), (48000, 16000), (8000, 16000), (192000, 16000), (22050, 16000), (16000, 44100), (11025, 8000)]


def prototype(up: int, down: int) -> torch.Tensor:
    """The polyphase weights in one line, as the reference wants them: the filter at `up` times the old rate."""
    weights = phase_weights(up, down).double()
    half = weights.shape[1] // 2
    line = torch.zeros(2 * half * up + 1, dtype=torch.float64)
    for place in range(up):
        for tap in range(2 * half):
            at = half * up + place - (tap + 1 - half) * up
            line[at] = weights[place, tap]
    return line


@pytest.mark.parametrize(("old", "new"), PAIRS)
@pytest.mark.parametrize("length", [1, 2, 441, 3001])
def test_it_is_the_reference_with_the_same_filter(old: int, new: int, length: int) -> None:
    samples = torch.randn(length)
    common = math.gcd(old, new)
    up, down = new // common, old // common
    line = prototype(up, down)
    expected = resample_poly(samples.double().numpy(), up, down, window=line.numpy() / up)
    found = resample(samples, old, new)
    assert found.shape == expected.shape == (math.ceil(length * new / old),)
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_what_both_rates_hold_is_kept_and_what_the_lower_cannot_hold_is_gone(old: int, new: int) -> None:
    seconds, middle = 0.5, slice(new // 8, new // 4)
    length = int(old * seconds)
    before = torch.arange(length).double() / old
    after = torch.arange(math.ceil(length * new / old)).double() / new
    lower = min(old, new) / 2
    for frequency in (100.0, 0.5 * lower, 0.85 * lower):
        found = resample(torch.sin(2 * math.pi * frequency * before).float(), old, new)
        expected = torch.sin(2 * math.pi * frequency * after).float()
        assert (found - expected)[middle].abs().max() < 1e-4
    if old > new:
        found = resample(torch.sin(2 * math.pi * 1.05 * lower * before).float(), old, new)
        assert found[middle].abs().max() < 1e-3


@pytest.mark.parametrize(("old", "new"), [*PAIRS, (16000, 16000), (44101, 16000), (16000, 15999)])
def test_block_by_block_is_all_at_once(old: int, new: int) -> None:
    samples = torch.randn(5003)
    whole = resample(samples, old, new)
    for size in (1000, 7, 5003):
        resampler = Resampler(old, new)
        parts = [resampler.push(block) for block in samples.split(size)]
        assert len(resampler.kept) <= 3 * resampler.half + size + resampler.down + 1
        torch.testing.assert_close(torch.cat([*parts, resampler.finish()]), whole, atol=1e-6, rtol=1e-5)
    assert len(whole) == math.ceil(len(samples) * new / old)


def test_the_same_rate_changes_nothing() -> None:
    samples = torch.randn(100)
    assert torch.equal(resample(samples, 16000, 16000), samples)


@pytest.mark.parametrize("rate", [0, -8000, RATES[0] - 1, RATES[1] + 1, 2**31])
def test_rates_that_no_sound_has_are_refused(rate: int) -> None:
    with pytest.raises(QkvError, match="samples a second"):
        Resampler(rate, 16000)
    with pytest.raises(QkvError, match="samples a second"):
        Resampler(16000, rate)
