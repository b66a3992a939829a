"""Training on pictures, from rows to a model that names them."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import qkv
from qkv.api.image_training import (
    ImageTraining,
    distillation_from,
    fingerprint_of_images,
    pretrain_image_model,
    train_image_classifier,
)
from qkv.data.augment import Flip, InTurn, Mixing, RandAugment
from qkv.data.image_rows import ImageRows, without_labels
from qkv.data.plan import PlannedBatch, RowCount
from qkv.data.preprocessing import Normalise
from qkv.errors import QkvError
from qkv.generate.image_readers import PatchGuesser
from qkv.train.objectives.images import HardDistillationLoss
from qkv.train.optimizers import adamw
from qkv.train.schedules import Constant, Linear
from qkv.train.settings import TrainSettings

TINY = {"patch": 4, "width": 16, "hidden": 32, "heads": 2, "layers": 2}
SETTINGS = TrainSettings(steps=60, evaluate_every=30, save_every=30, device="cpu", keep=1)
HOW = ImageTraining(
    augment=InTurn((Flip(), RandAugment(1, 2))),
    mixing=Mixing(mixup=0.2, cutmix=0.5, probability=0.3),
    batching=RowCount(24),
    settings=SETTINGS,
    optimizer=partial(adamw, learning_rate=5e-3),
    schedule=Linear(warmup=5),
    hold_out=0.2,
)


def rows(channels: int = 3, size: int = 12) -> ImageRows:
    """Three classes: bright at the left, at the right, at the foot."""
    draw = np.random.default_rng(0)
    labels = np.arange(120) % 3
    pixels = draw.integers(0, 100, (120, size, size, channels))
    half = size // 2
    everything, near, far = slice(None), slice(half), slice(half, None)
    places = [(everything, near), (everything, far), (far, everything)]
    for picture, label in zip(pixels, labels, strict=True):
        picture[places[label]] += 120
    pixels = pixels.astype(np.uint8)
    return ImageRows(pixels if channels == 3 else pixels[..., 0], labels, ("left", "right", "foot"))


def figures(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_new_model_learns_and_is_loaded_again(tmp_path: Path, channels: int) -> None:
    data = rows(channels)
    how = replace(HOW, augment=None, mixing=None)
    model = train_image_classifier(data, tmp_path / "run", sizes=TINY, how=how)
    loaded = qkv.load(tmp_path / "run", "cpu")
    pictures = [Image.fromarray(data.pixels[number]) for number in range(12)]
    found = loaded.run(pictures)
    assert found == model.run(pictures)
    right = sum(each.label == data.names[number % 3] for number, each in enumerate(found))
    assert right >= 10
    assert loaded.preprocessing.size == (12, 12)
    measured = [line["figures"] for line in figures(tmp_path / "run") if line["kind"] == "evaluation"]
    assert measured[-1].keys() == {"loss", "accuracy", "top5"}
    assert measured[-1]["accuracy"] > 0.8


def test_a_broken_off_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """Changed and mixed pictures included: what is drawn depends on the epoch and the batch alone."""
    data, how = rows(), replace(HOW, schedule=Constant(warmup=5))
    whole = train_image_classifier(data, tmp_path / "whole", sizes=TINY, how=how)
    first = replace(how, settings=replace(SETTINGS, steps=30))
    train_image_classifier(data, tmp_path / "parts", sizes=TINY, how=first)
    resumed = replace(how, resume=True)
    parts = train_image_classifier(data, tmp_path / "parts", sizes=TINY, how=resumed)
    for (name, mine), theirs in zip(parts.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_loaded_model_learns_other_classes(tmp_path: Path) -> None:
    data = rows()
    how = replace(HOW, settings=replace(SETTINGS, steps=2, evaluate_every=2, save_every=2))
    before = train_image_classifier(data, tmp_path / "first", sizes=TINY, how=how)
    other = replace(data, labels=data.labels % 2, names=("even", "odd"))
    after = train_image_classifier(other, tmp_path / "second", model=before, how=how)
    assert after.model.head_choice.labels == ("even", "odd")
    assert after.preprocessing == before.preprocessing


def test_a_deit_learns_from_a_teacher(tmp_path: Path) -> None:
    class Sides(nn.Module):
        """Knows the classes without having learned them."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(10.0))

        def forward(self, images: Tensor) -> Tensor:
            parts = (images[..., :6], images[..., 6:], images[:, :, 6:])
            return self.scale * torch.stack([part.mean((1, 2, 3)) for part in parts], 1)

    normalise = Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3)
    how = replace(HOW, settings=replace(SETTINGS, steps=3, evaluate_every=3, save_every=3))
    objective = HardDistillationLoss(Sides(), normalise=normalise)
    model = train_image_classifier(
        rows(), tmp_path / "run", family="deit", head="distilled", sizes=TINY, objective=objective, how=how
    )
    assert model.model.head_choice.kind == "distilled"


def test_a_model_is_pretrained_without_labels_and_then_learns_classes(tmp_path: Path) -> None:
    data = without_labels(rows().pixels)
    how = replace(HOW, mixing=None, settings=replace(SETTINGS, steps=20, evaluate_every=10, save_every=10))
    before = pretrain_image_model(data, tmp_path / "first", sizes=TINY, how=how)
    loaded = qkv.load(tmp_path / "first", "cpu")
    assert isinstance(loaded, PatchGuesser)
    pictures = [Image.fromarray(data.pixels[number]) for number in range(3)]
    assert all(torch.equal(one, other) for one, other in zip(loaded.run(pictures), before.run(pictures), strict=True))
    measured = [line["figures"] for line in figures(tmp_path / "first") if line["kind"] == "evaluation"]
    assert measured[-1]["loss"] < measured[0]["loss"]
    idle = replace(how, settings=replace(SETTINGS, steps=1), optimizer=partial(adamw, learning_rate=1e-12))
    after = train_image_classifier(rows(), tmp_path / "second", model=loaded, how=idle)
    torch.testing.assert_close(after.model.stack.state_dict(), before.model.stack.state_dict())
    assert after.model.embed.mask_token is None
    with pytest.raises(QkvError, match="leave both out here"):
        pretrain_image_model(data, tmp_path / "third", sizes=TINY, how=HOW)
    with pytest.raises(QkvError, match="masked head"):
        pretrain_image_model(data, tmp_path / "third", family="deit", sizes=TINY, how=how)


def test_a_trained_model_teaches_a_deit_that_reads_in_another_way(tmp_path: Path) -> None:
    data = rows()
    how = replace(HOW, settings=replace(SETTINGS, steps=2, evaluate_every=2, save_every=2))
    turned = replace(data, labels=(data.labels + 1) % 3, names=("foot", "left", "right"))
    teacher = train_image_classifier(turned, tmp_path / "teacher", sizes=TINY, how=how)
    teacher.preprocessing = replace(teacher.preprocessing.at(16), normalise=Normalise(1 / 255, (0.1,) * 3, (0.2,) * 3))
    objective = distillation_from(teacher, data)
    batch = data.batch(PlannedBatch(np.arange(6), 1, 1))
    with torch.no_grad():
        found = objective.teacher(batch.prepared(objective.normalise).images)
        larger = torch.nn.functional.interpolate(
            teacher.preprocessing.normalise(batch.pixels), (16, 16), mode="bilinear", antialias=True
        )
        expected = teacher.model(larger)[:, [1, 2, 0]]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    student = train_image_classifier(
        data, tmp_path / "student", family="deit", head="distilled", sizes=TINY, objective=objective, how=how
    )
    assert student.model.head_choice.labels == ("left", "right", "foot")
    with pytest.raises(QkvError, match="The teacher names foot, left, right"):
        distillation_from(teacher, replace(data, names=("a", "b", "c")))
    with pytest.raises(QkvError, match="differ in their channels"):
        distillation_from(teacher, rows(1))


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    data = rows()
    with pytest.raises(QkvError, match="take vit or deit"):
        train_image_classifier(data, tmp_path / "run", family="gpt2", how=HOW)
    with pytest.raises(QkvError, match="image follows from the pictures"):
        train_image_classifier(data, tmp_path / "run", sizes={**TINY, "image": 32}, how=HOW)
    oblong = replace(data, pixels=data.pixels[:, :8])
    with pytest.raises(QkvError, match="square pictures"):
        train_image_classifier(oblong, tmp_path / "run", sizes=TINY, how=HOW)
    with pytest.raises(QkvError, match="not those of the training pictures"):
        train_image_classifier(data, tmp_path / "run", valid=replace(data, names=("a", "b", "c")), how=HOW)


def test_a_fingerprint_is_of_pixels_and_labels() -> None:
    data = rows()
    changed = data.pixels.copy()
    changed[77, 3, 3, 1] ^= 1
    names = {fingerprint_of_images(each) for each in (data, replace(data, pixels=changed), data.some(range(119)))}
    assert len(names) == 3
    assert fingerprint_of_images(data, None) == fingerprint_of_images(rows())
