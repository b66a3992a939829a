"""Sounds in, labels, vectors and states out; long sounds in windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from qkv.data.letters import Letters, write_letters
from qkv.data.sound import Sound
from qkv.data.sound_features import FilterBank, LogMel, WaveFeatures
from qkv.errors import QkvError
from qkv.generate.listen import Listener
from qkv.generate.sound_readers import SoundClassifier, SoundEncoder, SoundStateReader, use_of_sounds
from qkv.models.ast import ASTSizes
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from qkv.weights.load import load_model
from tests.models.small import perturb
from tests.models.small_sounds import LABELS, small_sound

SIZES = ASTSizes(
    bands=16, frames=20, patch=8, frequency_stride=4, time_stride=4, width=12, hidden=16, heads=2, layers=1
)
BANK = FilterBank(bands=16, frames=20)


def small_ast(kind: str = "classification") -> ImageModel:
    torch.manual_seed(0)
    choice = HeadChoice(kind, LABELS if kind == "classification" else (), "mean" if kind == "embedding" else None)
    model: ImageModel = build("ast", SIZES, choice).eval()
    perturb(model)
    return model


@torch.no_grad()
def test_a_sound_gets_the_shares_that_the_model_gives_it() -> None:
    waves = [torch.randn(5000) * 0.1, torch.randn(777) * 0.1, torch.randn(1)]
    model = small_sound("base", "classification")
    found = SoundClassifier(model, WaveFeatures()).run(waves, rows=2)
    expected = model(WaveFeatures()(waves[1][None]).values).softmax(-1)[0]
    assert list(found[1].probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)
    assert found[1].label == LABELS[int(expected.argmax())]
    pictures = small_ast()
    (only,) = SoundClassifier(pictures, BANK).run([waves[1]])
    expected = pictures(BANK(waves[1][None]).values).softmax(-1)[0]
    assert list(only.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)


@torch.no_grad()
def test_a_long_sound_is_the_mean_of_its_windows() -> None:
    wave, model = torch.randn(2 * BANK.samples + BANK.samples // 2) * 0.1, small_ast()
    (found,) = SoundClassifier(model, BANK).run([wave])
    parts = [model(BANK(part[None]).values).softmax(-1)[0] for part in wave.split(BANK.samples)]
    expected = (parts[0] + parts[1] + 0.5 * parts[2]) / 2.5
    assert list(found.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)
    vectors = SoundEncoder(small_sound("prenorm", "embedding"), WaveFeatures(), window=0.01)
    assert vectors.run([wave, wave[:100]]).shape == (2, 12)
    states = SoundStateReader(small_sound("prenorm", "states"), WaveFeatures(), window=0.02).run([wave[:700]])
    assert states[0].shape == (2 * small_sound().frames.count(320) + small_sound().frames.count(60), 12)


def test_files_and_sounds_are_taken_alike(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 24000)
    soundfile.write(tmp_path / "a.wav", samples, 48000, subtype="FLOAT")
    reader = SoundClassifier(small_ast(), BANK)
    file, sound = reader.run([tmp_path / "a.wav", Sound(torch.from_numpy(samples).float(), 48000)])
    assert list(file.probabilities.values()) == pytest.approx(list(sound.probabilities.values()), abs=1e-5)


def test_a_folder_is_used_by_what_its_head_is_for(tmp_path: Path) -> None:
    for number, (reader, kind) in enumerate(
        [
            (SoundClassifier(small_ast(), BANK), SoundClassifier),
            (SoundEncoder(small_ast("embedding"), BANK), SoundEncoder),
            (SoundStateReader(small_ast("pooled"), BANK), SoundStateReader),
            (SoundStateReader(small_sound("base", "tokens"), WaveFeatures(rate=8000)), SoundStateReader),
        ]
    ):
        folder = tmp_path / str(number)
        reader.save(folder)
        again = use_of_sounds(load_model(folder), folder)
        assert type(again) is kind
        assert again.features == reader.features
        wave = torch.randn(1000)
        first, second = reader.run([wave]), again.run([wave])
        assert torch.equal(first[0], second[0]) if isinstance(first[0], torch.Tensor) else first == second
        assert reader.model.family in repr(reader)
    write_letters(tmp_path, Letters(tuple("-|abcde"), space=1))
    assert isinstance(use_of_sounds(small_sound(), tmp_path), Listener)
    with pytest.raises(QkvError, match="trained further"):
        use_of_sounds(small_sound("base", "pretraining"), tmp_path)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(QkvError, match="needs a model with a classification head"):
        SoundClassifier(small_sound(), WaveFeatures())
    for model, features in [
        (small_sound("base", "classification"), BANK),
        (small_ast(), WaveFeatures()),
        (small_ast(), LogMel()),
    ]:
        with pytest.raises(QkvError, match="of the other kind"):
            SoundClassifier(model, features)
    with pytest.raises(QkvError, match="shorter than"):
        SoundClassifier(small_sound("base", "classification"), WaveFeatures(), window=0.001)
    reader = SoundClassifier(small_ast(), BANK)
    with pytest.raises(QkvError, match="put the one sound into brackets"):
        reader.run("a.wav")
    with pytest.raises(QkvError, match="one row of samples"):
        reader.run([torch.zeros(2, 2)])
    assert reader.run([]) == []
