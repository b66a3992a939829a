"""What models are given, against the reference library's own preparation, frame for frame."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import ASTFeatureExtractor, Wav2Vec2FeatureExtractor, WhisperFeatureExtractor
from transformers.utils import is_speech_available

from qkv.data.sound_features import FilterBank, LogMel, WaveFeatures, join_waves
from qkv.data.sound_processor import PROCESSOR_FILE, read_sound_processor, write_sound_processor
from qkv.errors import QkvError

LENGTHS = [16000, 401, 3217, 40001]


def some_wave(length: int, seed: int = 0) -> Tensor:
    """Loud and quiet stretches, a tone in noise, and silence."""
    random = np.random.default_rng(seed)
    time = np.arange(length) / 16000
    wave = 0.3 * np.sin(2 * np.pi * 523.0 * time) + random.normal(0, 0.05, length) * np.exp(-3 * time)
    wave[length // 2 : length // 2 + length // 8] = 0
    return torch.from_numpy(wave).float()


def waves() -> list[Tensor]:
    return [some_wave(length, seed) for seed, length in enumerate(LENGTHS)]


def close(found: Tensor, expected: Any, error: float) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected), atol=error, rtol=0, check_dtype=False)


@pytest.mark.parametrize("options", [{}, {"max_length": 128, "num_mel_bins": 64}, {"do_normalize": False}])
def test_the_filter_bank_of_ast(options: dict[str, Any]) -> None:
    theirs = ASTFeatureExtractor(**options)
    names = {"max_length": "frames", "num_mel_bins": "bands", "do_normalize": "normalise"}
    ours = FilterBank(**{names[key]: value for key, value in options.items()})
    expected = theirs([wave.numpy() for wave in waves()], sampling_rate=16000, return_tensors="pt").input_values
    found = ours(*join_waves(waves()))
    assert found.values.shape == (len(LENGTHS), 1, ours.bands, ours.frames)
    # where torchaudio is, the reference works in single precision
    close(found.values[:, 0].transpose(1, 2), expected, 1e-3 if is_speech_available() else 1e-4)
    assert found.lengths.tolist() == [min(1 + (length - 400) // 160, ours.frames) for length in LENGTHS]
    for row, wave in enumerate(waves()):
        close(ours(wave[None]).values[0], found.values[row], 1e-6)


@pytest.mark.parametrize("bands", [80, 128])
def test_the_log_mel_spectrum_of_whisper(bands: int) -> None:
    theirs, ours = WhisperFeatureExtractor(feature_size=bands), LogMel(bands=bands)
    given = [wave.numpy() for wave in waves()]
    expected = theirs(given, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    found = ours(*join_waves(waves()))
    assert found.values.shape == (len(LENGTHS), bands, 3000)
    close(found.values, expected.input_features, 1e-5)
    assert found.lengths.tolist() == expected.attention_mask.sum(1).tolist()


def test_a_sound_longer_than_a_window_is_cut_or_kept_whole() -> None:
    wave = some_wave(35 * 16000)
    theirs, ours = WhisperFeatureExtractor(), LogMel()
    close(ours(wave[None]).values, theirs(wave.numpy(), sampling_rate=16000, return_tensors="pt").input_features, 1e-5)
    whole = theirs(wave.numpy(), sampling_rate=16000, return_tensors="pt", truncation=False, padding="longest")
    close(ours.spectrum(wave[None]), whole.input_features, 1e-5)
    assert ours(wave[None]).lengths.tolist() == [3000]


def test_the_samples_of_wav2vec() -> None:
    given = [wave.numpy() for wave in waves()]
    theirs = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    expected = theirs(given, sampling_rate=16000, return_tensors="pt", padding=True)
    found = WaveFeatures()(*join_waves(waves()))
    close(found.values, expected.input_values, 2e-5)
    assert found.lengths.tolist() == expected.attention_mask.sum(1).tolist() == LENGTHS
    for wave in waves():  # alone, no mask is needed
        alone = Wav2Vec2FeatureExtractor()(wave.numpy(), sampling_rate=16000, return_tensors="pt").input_values
        close(WaveFeatures()(wave[None]).values, alone, 2e-5)
    raw = WaveFeatures(normalise=False)(*join_waves(waves()))
    assert torch.equal(raw.values, join_waves(waves())[0])


@pytest.mark.parametrize("features", [WaveFeatures(), FilterBank(frames=64), LogMel(seconds=1)], ids=repr)
def test_what_stands_in_padding_changes_nothing(features: Any) -> None:
    batch, lengths = join_waves(waves()[:3])
    expected = features(batch, lengths).values
    for row, length in enumerate(lengths):
        batch[row, length:] = torch.randn(batch.shape[1] - length)
    assert torch.equal(features(batch, lengths).values, expected)


@pytest.mark.parametrize("features", [WaveFeatures(), FilterBank(), LogMel()], ids=repr)
def test_sounds_that_cannot_be_prepared_are_refused(features: Any) -> None:
    with pytest.raises(QkvError, match="rows of samples"):
        features(torch.zeros(5))
    with pytest.raises(QkvError, match="too short"):
        features(torch.zeros(1, 0))
    with pytest.raises(QkvError, match="too short or longer"):
        features(torch.zeros(1, 500), torch.tensor([501]))
    with pytest.raises(QkvError, match="no numbers"):
        features(torch.full((1, 500), float("nan")))


def test_short_sounds() -> None:
    assert WaveFeatures()(torch.ones(1, 1)).values.tolist() == [[0.0]]
    assert LogMel()(torch.ones(1, 1)).values.isfinite().all()
    assert FilterBank()(torch.zeros(1, 400)).lengths.tolist() == [1]
    with pytest.raises(QkvError, match="from 400"):
        FilterBank()(torch.zeros(1, 399))
    with pytest.raises(QkvError, match="more than 200 samples"):
        LogMel().spectrum(torch.zeros(1, 200))


EXTRACTORS = [
    (Wav2Vec2FeatureExtractor(), WaveFeatures()),
    (Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True, sampling_rate=8000), WaveFeatures(
        normalise=False, attention_mask=True, rate=8000
    )),
    (ASTFeatureExtractor(), FilterBank()),
    (ASTFeatureExtractor(mean=1.5, std=2.0, max_length=99, num_mel_bins=40, do_normalize=False), FilterBank(
        mean=1.5, deviation=2.0, frames=99, bands=40, normalise=False
    )),
    (WhisperFeatureExtractor(), LogMel()),
    (WhisperFeatureExtractor(feature_size=128, chunk_length=10), LogMel(bands=128, seconds=10)),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours"), EXTRACTORS)
def test_a_published_preparation_is_read_and_written_as_it_was(theirs: Any, ours: Any, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    assert read_sound_processor(tmp_path) == ours
    write_sound_processor(tmp_path, ours)
    assert read_sound_processor(tmp_path) == ours
    again = type(theirs).from_pretrained(tmp_path)
    assert {**again.to_dict(), "processor_class": None} == {**theirs.to_dict(), "processor_class": None}


def test_older_files_of_whisper_hold_what_follows(tmp_path: Path) -> None:
    theirs = WhisperFeatureExtractor()
    file = tmp_path / PROCESSOR_FILE
    config = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 80,
        "n_samples": 480000,
        "nb_max_frames": 3000,
        "mel_filters": theirs.mel_filters.T.tolist(),
        "processor_class": "WhisperProcessor",
    }
    file.write_text(json.dumps(config))
    assert read_sound_processor(tmp_path) == LogMel()
    for change in ({"n_samples": 1}, {"mel_filters": [[1.0]]}, {"mel_filters": "x"}):
        file.write_text(json.dumps({**config, **change}))
        with pytest.raises(QkvError, match="from the rest"):
            read_sound_processor(tmp_path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"feature_extractor_type": "Other"}, "Wav2Vec2FeatureExtractor"),
        ({"new_key": 1}, "new_key"),
        ({"padding_side": "left"}, "padding_side"),
        ({"sampling_rate": 0}, "whole number"),
        ({"sampling_rate": "16000"}, "whole number"),
        ({"do_normalize": 1}, "true or false"),
        ({"mel_filters": []}, "does not"),
    ],
)
def test_a_preparation_that_is_not_known_is_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    config = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 1, **change}
    (tmp_path / PROCESSOR_FILE).write_text(json.dumps(config))
    with pytest.raises(QkvError, match=match):
        read_sound_processor(tmp_path)


def test_no_file_and_no_object_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="missing"):
        read_sound_processor(tmp_path)
    (tmp_path / PROCESSOR_FILE).write_text("[]")
    with pytest.raises(QkvError, match="feature_extractor_type"):
        read_sound_processor(tmp_path)
