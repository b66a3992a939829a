"""Training on sounds, from waves to a model that names them."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.api.sound_training import SoundTraining, fingerprint_of_sounds, train_sound_classifier
from qkv.data.augment import InTurn, Noise, Roll, SpecAugment, WaveMixing
from qkv.data.labelled_sounds import LabelledSounds
from qkv.data.plan import RowCount
from qkv.data.sound_features import FilterBank, WaveFeatures
from qkv.errors import QkvError
from qkv.generate.image_readers import ImageClassifier
from qkv.train.optimizers import adamw
from qkv.train.schedules import Constant, Linear
from qkv.train.settings import TrainSettings
from tests.look.test_picture_maps import WAY
from tests.models.small_images import small_model

AST = {"bands": 16, "patch": 8, "frequency_stride": 8, "time_stride": 8, "width": 16, "hidden": 32, "heads": 2,
       "layers": 1}  # fmt: skip
WAV2VEC2 = {"channels": (8, 8, 8), "kernels": (10, 8, 4), "strides": (5, 8, 4), "width": 16, "hidden": 32, "heads": 2,
            "layers": 1, "position_kernel": 8, "position_groups": 2, "decision_width": 8}  # fmt: skip
SIZES = {"ast": AST, "wav2vec2": WAV2VEC2}
SETTINGS = TrainSettings(steps=50, evaluate_every=25, save_every=25, device="cpu", keep=1)
HOW = SoundTraining(
    batching=RowCount(12),
    settings=SETTINGS,
    optimizer=partial(adamw, learning_rate=5e-3),
    schedule=Linear(warmup=5),
    hold_out=0.2,
)
CHANGED = replace(HOW, augment=InTurn((SpecAugment(bands=3, frames=3), Noise(), Roll(2))), mixing=WaveMixing())


def sounds(count: int = 36, seconds: float = 0.4) -> LabelledSounds:
    """Two classes: a low hum and a high one, at any phase, in noise."""
    draw = np.random.default_rng(0)
    time = np.arange(round(16000 * seconds)) / 16000
    labels = np.arange(count) % 2
    waves = [
        np.sin(2 * np.pi * ((250, 3000)[label] * draw.uniform(0.9, 1.1) * time + draw.random()))
        + draw.normal(0, 0.3, len(time))
        for label in labels
    ]
    return LabelledSounds([torch.tensor(wave, dtype=torch.float32) for wave in waves], labels, ("low", "high"))


def figures(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["figures"] for line in lines if line["kind"] == "evaluation"]


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("family", ["ast", "wav2vec2"])
def test_a_new_model_learns_and_is_loaded_again(tmp_path: Path, family: str, changed: bool) -> None:
    data = sounds()
    how = HOW
    if changed:
        how = CHANGED if family == "ast" else replace(CHANGED, augment=InTurn((Noise(), Roll(30))))
    model = train_sound_classifier(data, tmp_path / "run", family=family, sizes=SIZES[family], seconds=0.2, how=how)
    loaded = qkv.load(tmp_path / "run", "cpu")
    found = loaded.run(data.waves[:12])
    assert found == model.run(data.waves[:12])
    assert loaded.features == model.features
    measured = figures(tmp_path / "run")[-1]
    assert measured.keys() == {"loss", "accuracy", "top5"}
    if family == "ast":
        assert (model.features.frames, model.model.sizes.frames) == (18, 18)
        assert sum(each.label == data.names[number % 2] for number, each in enumerate(found)) >= 10
        assert measured["accuracy"] > 0.8


def test_pictures_are_made_once_unless_waves_are_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = FilterBank.__call__

    def counted(self: FilterBank, waves: torch.Tensor, lengths: torch.Tensor | None = None) -> Any:
        calls.append(len(waves))
        return plain(self, waves, lengths)

    monkeypatch.setattr(FilterBank, "__call__", counted)
    short = replace(HOW, settings=replace(SETTINGS, steps=8), hold_out=0.0)
    train_sound_classifier(sounds(), tmp_path / "once", sizes=AST, how=short)
    assert calls == [1] * 72  # each sound to measure, and once to learn from
    calls.clear()
    train_sound_classifier(sounds(), tmp_path / "anew", sizes=AST, how=replace(short, mixing=WaveMixing()))
    assert calls.count(12) >= 8


def test_a_broken_off_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """Cut, changed and mixed sounds included: what is drawn depends on the epoch and the batch alone."""
    how = replace(CHANGED, schedule=Constant(warmup=5), settings=replace(SETTINGS, steps=8, save_every=4))
    learn = partial(train_sound_classifier, sounds(), sizes=AST, seconds=0.2)
    whole = learn(tmp_path / "whole", how=how)
    learn(tmp_path / "parts", how=replace(how, settings=replace(how.settings, steps=4)))
    parts = learn(tmp_path / "parts", how=replace(how, resume=True))
    for (name, mine), theirs in zip(parts.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("family", ["ast", "wav2vec2"])
def test_a_loaded_model_learns_other_classes(tmp_path: Path, family: str) -> None:
    data = sounds()
    short = replace(HOW, settings=replace(SETTINGS, steps=1))
    before = train_sound_classifier(data, tmp_path / "first", family=family, sizes=SIZES[family], how=short)
    other = replace(data, names=("one", "two", "three"))
    after = train_sound_classifier(other, tmp_path / "second", model=before, how=short)
    assert after.model.head_choice.labels == ("one", "two", "three")
    assert after.features == before.features


def test_a_new_model_begins_with_one_of_pictures(tmp_path: Path) -> None:
    seer = small_model("vit", "classification")
    sizes = {**AST, "patch": 4, "frequency_stride": 4, "time_stride": 4, "width": seer.sizes.width,
             "hidden": seer.sizes.hidden, "heads": seer.sizes.heads, "layers": seer.sizes.layers}  # fmt: skip
    how = replace(
        HOW, settings=replace(SETTINGS, steps=1), optimizer=partial(adamw, learning_rate=1e-12, weight_decay=0.0)
    )
    use = train_sound_classifier(
        sounds(), tmp_path / "run", sizes=sizes, start=ImageClassifier(seer, WAY), seconds=0.2, how=how
    )
    for name, tensor in seer.stack.state_dict().items():
        torch.testing.assert_close(use.model.stack.state_dict()[name], tensor)


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    data = sounds(8)
    learn = partial(train_sound_classifier, data, tmp_path / "run", how=HOW)
    with pytest.raises(QkvError, match="take ast or wav2vec2"):
        learn(family="whisper")
    with pytest.raises(QkvError, match="frames follows from how many seconds"):
        learn(sizes={**AST, "frames": 32})
    with pytest.raises(QkvError, match="less than one patch"):
        learn(sizes=AST, seconds=0.05)
    with pytest.raises(QkvError, match="not those of the training sounds"):
        learn(valid=replace(data, names=("a", "b")))
    with pytest.raises(QkvError, match="shorter than what the model hears"):
        learn(valid=replace(data, waves=[torch.zeros(300)] * 8), sizes=AST)
    use = train_sound_classifier(
        data, tmp_path / "one", sizes=AST, how=replace(HOW, settings=replace(SETTINGS, steps=1))
    )
    with pytest.raises(QkvError, match="asked of a new model only"):
        learn(model=use, seconds=1.0)
    with pytest.raises(QkvError, match="prepared for the model here"):
        learn(model=use, valid=data.made(WaveFeatures()).made(use.features))


def test_a_fingerprint_is_of_samples_and_labels() -> None:
    data = sounds(6)
    changed = replace(data, waves=[*data.waves[:-1], data.waves[-1] + 1e-3])
    names = {fingerprint_of_sounds(each) for each in (data, changed, data.some(range(5)))}
    assert len(names) == 3
    assert fingerprint_of_sounds(data, None) == fingerprint_of_sounds(sounds(6))
