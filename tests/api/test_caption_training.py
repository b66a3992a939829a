"""CLIP in small: a new one, one trained further, and what its folder is good for."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import qkv
from qkv.api.caption_training import CaptionTraining, fingerprint_of_captions, train_image_text
from qkv.data.augment import InTurn, Shift
from qkv.data.captioned import Captioned
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.train.optimizers import adamw
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from qkv.weights.export import export

TINY = {
    "projection": 16, "positions": 16, "patch": 4, "text_width": 16, "text_hidden": 32, "text_heads": 2,
    "text_layers": 1, "image_width": 16, "image_hidden": 32, "image_heads": 2, "image_layers": 1,
}  # fmt: skip
COLOURS = {"red": (220, 20, 20), "green": (20, 200, 30), "blue": (30, 40, 220), "yellow": (230, 220, 30)}
PLACES = {"left": (slice(None), slice(0, 4)), "right": (slice(None), slice(4, 8)), "top": (slice(0, 4), slice(None))}
SETTINGS = TrainSettings(
    steps=160, evaluate_every=40, save_every=40, device="cpu", keep=1, watch="accuracy", better="higher"
)
HOW = CaptionTraining(
    batching=RowCount(12), settings=SETTINGS, optimizer=partial(adamw, learning_rate=5e-3), schedule=Constant(warmup=5)
)


def things() -> Captioned:
    """A colour in a part of a picture, in two shades, told in one of two ways."""
    draw = np.random.default_rng(0)
    pixels, captions, pictures = [], [], []
    for colour, values in COLOURS.items():
        for place, part in PLACES.items():
            for _ in range(2):
                picture = draw.integers(0, 60, (8, 8, 3), np.uint8)
                picture[part] = np.array(values) - draw.integers(0, 15, (1, 1, 3))
                pixels.append(picture)
            captions.append((f"{colour} {place}", f"at the {place} {colour}"))
            pictures.append((len(pixels) - 2, len(pixels) - 1))
    return Captioned(np.stack(pixels), captions, pictures)


@pytest.mark.slow
def test_a_new_model_learns_and_its_folder_tells_classes_in_words(tmp_path: Path) -> None:
    data = things()
    model = train_image_text(data, tmp_path / "run", valid=data, sizes=TINY, how=HOW)
    loaded = qkv.load(tmp_path / "run", "cpu")
    pictures = [Image.fromarray(data.pixels[places[0]]) for places in data.shown]
    labels = [captions[0] for captions in data.captions]
    found = [each.label for each in loaded.run(pictures, labels, templates=("{}",))]
    assert found == [each.label for each in model.run(pictures, labels, templates=("{}",))]
    assert sum(label == right for label, right in zip(found, labels, strict=True)) >= 10
    colours = loaded.run(pictures, ["blue left", "red left"], templates=("{}",))  # part of the labels alone
    assert colours[labels.index("red left")].label == "red left"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    measured = [line["figures"] for line in lines if line["kind"] == "evaluation"]
    assert measured[-1].keys() == {"loss", "accuracy", "top5", "text_accuracy"}
    assert measured[-1]["accuracy"] > 0.8


def test_a_trained_model_is_exported_to_the_reference(tmp_path: Path) -> None:
    data = things()
    how = replace(HOW, settings=replace(SETTINGS, steps=3, evaluate_every=3, save_every=3))
    model = train_image_text(data, tmp_path / "run", sizes=TINY, how=how)
    export(tmp_path / "run", tmp_path / "exported")
    theirs = transformers.CLIPModel.from_pretrained(tmp_path / "exported").eval()
    cutter = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "exported", use_fast=False)
    texts = ["red left", "at the top blue", "something else"]
    pictures = [Image.fromarray(data.pixels[number]) for number in range(4)]
    inputs = cutter(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        answer = theirs(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            pixel_values=processor(pictures, return_tensors="pt")["pixel_values"],
        )
    scale = model.model.log_scale.exp().item()
    torch.testing.assert_close(
        answer.logits_per_image, model.similarities(pictures, texts) * scale, atol=1e-4, rtol=1e-4
    )


def test_a_broken_off_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """Other pictures and captions are drawn in each epoch, and changed: by the seed and the epoch alone."""
    how = replace(HOW, augment=InTurn((Shift(1),)), settings=replace(SETTINGS, steps=8, evaluate_every=4, save_every=4))
    data = things()
    whole = train_image_text(data, tmp_path / "whole", valid=data, sizes=TINY, how=how)
    first = replace(how, settings=replace(how.settings, steps=4))
    train_image_text(data, tmp_path / "parts", valid=data, sizes=TINY, how=first)
    parts = train_image_text(data, tmp_path / "parts", valid=data, sizes=TINY, how=replace(how, resume=True))
    for (name, mine), theirs in zip(parts.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_loaded_model_is_trained_further_with_its_own_tokenizer(tmp_path: Path) -> None:
    data = things()
    how = replace(HOW, settings=replace(SETTINGS, steps=2, evaluate_every=2, save_every=2))
    before = train_image_text(data, tmp_path / "first", sizes=TINY, how=how)
    old = before.model.text.embed.tokens.weight.detach().clone()
    after = train_image_text(data, tmp_path / "second", model=qkv.load(tmp_path / "first", "cpu"), how=how)
    assert after.tokenizer.fingerprint() == before.tokenizer.fingerprint()
    assert not torch.equal(after.model.text.embed.tokens.weight, old)
    large = Captioned(np.zeros((2, 9, 9, 3), np.uint8), [("a",), ("b",)])
    with pytest.raises(QkvError, match="own preprocessing"):
        train_image_text(large, tmp_path / "third", model=after, how=how)


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    data = things()
    with pytest.raises(QkvError, match="vocabulary follows from"):
        train_image_text(data, tmp_path / "run", sizes={**TINY, "vocabulary": 9}, how=HOW)
    oblong = Captioned(data.pixels[:, :6], data.captions, data.pictures)
    with pytest.raises(QkvError, match="square pictures"):
        train_image_text(oblong, tmp_path / "run", sizes=TINY, how=HOW)


def test_a_fingerprint_is_of_pixels_and_captions() -> None:
    data = things()
    changed = data.pixels.copy()
    changed[7, 3, 3, 1] ^= 1
    others = (
        Captioned(changed, data.captions, data.pictures),
        Captioned(data.pixels, [("other",), *data.captions[1:]], data.pictures),
        data.some(range(11)),
    )
    assert len({fingerprint_of_captions(each) for each in (data, *others)}) == 4
    assert fingerprint_of_captions(data, None) == fingerprint_of_captions(things())
