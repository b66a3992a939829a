"""DETR in small: a new one, one trained further, and what its folder is good for."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import qkv
from qkv.api.detection_training import (
    DetectionTraining,
    detection_scores,
    divided_boxes,
    fingerprint_of_boxes,
    new_detection_model,
    train_detector,
)
from qkv.data.boxes import BoxedImages
from qkv.data.composing import Composer
from qkv.data.plan import RowCount
from qkv.data.preprocessing import EdgesUpTo, Normalise, Preprocessing
from qkv.data.stored_boxes import StoredBoxes, store_boxes
from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.parts.convolution import BatchNorm
from qkv.train.optimizers import adamw
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from qkv.weights.export import export
from tests.data.test_composing import cutouts

TINY: dict[str, Any] = {
    "stem": 4, "stage_widths": (8, 12), "stage_depths": (1, 1), "queries": 5, "width": 16, "encoder_hidden": 16,
    "decoder_hidden": 16, "encoder_heads": 2, "decoder_heads": 2, "encoder_layers": 1, "decoder_layers": 2,
    "dropout": 0.0,
}  # fmt: skip
SETTINGS = TrainSettings(
    steps=40, clip=0.1, evaluate_every=20, save_every=20, device="cpu", keep=1, watch="map", better="higher"
)
HOW = DetectionTraining(
    batching=RowCount(8), settings=SETTINGS, optimizer=partial(adamw, learning_rate=3e-3), schedule=Constant()
)
FEW = replace(HOW, settings=replace(SETTINGS, steps=2, evaluate_every=2, save_every=2))


def scenes(count: int = 24, seed: int = 0) -> Composer:
    backgrounds = [np.full((40, 40, 3), 200, np.uint8)]
    return Composer(
        cutouts=cutouts(), backgrounds=backgrounds, scenes=count, size=(32, 32), objects=(1, 2), scale=(0.4, 0.6),
        seed=seed,
    )  # fmt: skip


def stored(count: int = 24, seed: int = 0) -> StoredBoxes:
    made = scenes(count, seed)
    return store_boxes(BoxedImages(made, made.names), (32, 32))


def test_a_new_model_learns_and_its_folder_finds_objects(tmp_path: Path) -> None:
    data, held = stored(), stored(8, seed=1)
    model = train_detector(data, tmp_path / "run", valid=held, sizes=TINY, how=HOW)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    measured = [line["figures"] for line in lines if line["kind"] == "evaluation"]
    assert measured[-1].keys() == {
        "loss", "class_loss", "distance", "apart", "right_classes", "map", "map50", "recall",
    }  # fmt: skip
    assert measured[-1]["loss"] < measured[0]["loss"]
    assert lines[-1]["flops"] > 0
    loaded = qkv.load(tmp_path / "run", "cpu")
    picture = Image.fromarray(held.pixels[0])
    assert loaded.run([picture], threshold=0.0) == model.run([picture], threshold=0.0)
    scores = detection_scores(loaded, held)
    assert scores == detection_scores(model, held)
    assert scores.average == pytest.approx(max(each["map"] for each in measured), abs=1e-6)


def test_the_backbone_of_a_new_model_learns_its_norms() -> None:
    choice = HeadChoice("detection", labels=("ant",))
    small = {**TINY, "stage_widths": (8, 16), "residual": "bottleneck"}
    for sizes in ("desk", small):
        model = new_detection_model(sizes, choice)
        assert any(isinstance(module, BatchNorm) for module in model.backbone.modules())
    frozen = new_detection_model({**TINY, "map_norm": "frozen"}, choice)
    assert not any(isinstance(module, BatchNorm) for module in frozen.backbone.modules())


def test_pictures_may_be_read_as_they_are_needed(tmp_path: Path) -> None:
    made = scenes(10)
    prepared = Preprocessing(
        resize=EdgesUpTo(24, 40), normalise=Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3), padding="to largest"
    )
    data = BoxedImages(made, made.names)
    model = train_detector(
        data, tmp_path / "run", sizes=TINY, preprocessing=prepared, how=replace(FEW, hold_out=0.2, scored=1)
    )
    assert model.preprocessing == prepared


def test_a_broken_off_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """Which pictures are mirrored depends on the seed, the epoch and the batch alone."""
    how, data = replace(HOW, settings=replace(SETTINGS, steps=8, evaluate_every=4, save_every=4)), stored()
    whole = train_detector(data, tmp_path / "whole", sizes=TINY, how=how)
    first = replace(how, settings=replace(how.settings, steps=4))
    train_detector(data, tmp_path / "parts", sizes=TINY, how=first)
    parts = train_detector(data, tmp_path / "parts", sizes=TINY, how=replace(how, resume=True))
    for (name, mine), theirs in zip(parts.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_loaded_model_learns_other_classes_and_is_exported(tmp_path: Path) -> None:
    data = stored()
    train_detector(data, tmp_path / "first", sizes=TINY, how=replace(FEW, optimizer=None))
    other = StoredBoxes(data.pixels, [() for _ in data.boxes], ("ant", "bee", "cat"))
    other.boxes[0:1] = [tuple(replace(box, label="ant") for box in data.boxes[0])]  # type: ignore[index]
    how = replace(FEW, optimizer=None, hold_out=0.0, settings=replace(FEW.settings, watch="loss", better="lower"))
    after = train_detector(other, tmp_path / "second", model=qkv.load(tmp_path / "first", "cpu"), how=how)
    assert after.model.head_choice.labels == ("ant", "bee", "cat")
    export(tmp_path / "second", tmp_path / "exported")
    theirs = transformers.DetrForObjectDetection.from_pretrained(tmp_path / "exported").eval()
    pixels = after.preprocessing.batch([Image.fromarray(data.pixels[0])]).pixels
    with torch.no_grad():
        ours, answer = after.model.eval()(pixels), theirs(pixels)
    torch.testing.assert_close(ours.logits, answer.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.boxes, answer.pred_boxes, atol=1e-4, rtol=1e-4)
    published = qkv.load(tmp_path / "exported", "cpu")  # and such a folder is trained further
    further = train_detector(data, tmp_path / "third", model=published, how=replace(FEW, optimizer=None))
    assert further.model.head_choice.labels == data.names


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    data = stored(8)
    model = train_detector(data, tmp_path / "run", sizes=TINY, how=FEW)
    with pytest.raises(QkvError, match="not those of the training"):
        train_detector(data, tmp_path / "a", valid=replace(data, names=("disc", "bar")), sizes=TINY, how=HOW)
    with pytest.raises(QkvError, match="leave the other out"):
        train_detector(data, tmp_path / "a", model=model, preprocessing=model.preprocessing, how=HOW)
    large = store_boxes(data.as_images(), (48, 48))
    with pytest.raises(QkvError, match="store them at its own size"):
        train_detector(large, tmp_path / "a", model=model, how=HOW)
    with pytest.raises(QkvError, match="leaves nothing to train on"):
        divided_boxes(data, 1.0)


def test_parts_and_fingerprints_are_of_these_very_pictures() -> None:
    data = stored(10)
    kept, held = divided_boxes(data, 0.3)
    assert (len(kept), len(held)) == (7, 3)
    pictures = {each.tobytes() for part in (kept, held) for each in part.pixels}
    assert pictures == {each.tobytes() for each in data.pixels}
    changed = data.pixels.copy()
    changed[3, 2, 2, 1] ^= 1
    names = {fingerprint_of_boxes(each) for each in (data, replace(data, pixels=changed), kept, data.as_images())}
    assert len(names) == 4
