"""Attention over pictures as images, pages and by the command."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.api.looking_pictures import look_at_pictures
from qkv.data.preprocessing import Exactly, Normalise, Preprocessing
from qkv.errors import QkvError
from qkv.generate.image_readers import ImageClassifier
from qkv.look.picture_maps import record_picture
from qkv.look.pictures import draw_distances, draw_filters, draw_layer, draw_picture, draw_similarity, over_picture
from tests.cli.command import qkv
from tests.models.small_images import small_model

WAY = Preprocessing(resize=Exactly(12, 12), normalise=Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    file = tmp_path / "<photo> & co.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)).save(file)
    return file


@pytest.fixture
def use() -> ImageClassifier:
    return ImageClassifier(small_model("vit", "classification"), WAY)


def test_the_place_that_is_looked_at_is_bright_and_others_are_dark() -> None:
    white = Image.new("RGB", (30, 30), (255, 255, 255))
    weights = np.zeros((3, 3), np.float32)
    weights[0, 2] = 0.4
    lit = np.asarray(over_picture(white, weights, 90))[..., 0]
    assert lit.shape == (90, 90)
    assert lit[5, 85] == 255
    assert lit[85, 5] < 40
    dark = np.asarray(over_picture(white, np.zeros((3, 3), np.float32), 90))
    assert dark.max() < 40


def test_everything_can_be_drawn(use: ImageClassifier, photo: Path) -> None:
    record = record_picture(use, photo)
    drawn = [draw_picture(record), draw_layer(record, 0), draw_distances(record), draw_filters(use.model)]
    drawn.append(draw_similarity(use.model))
    for image in drawn:
        assert image.mode == "RGB"
        assert np.asarray(image).std() > 3


def test_a_page_holds_every_layer_and_loads_nothing(use: ImageClassifier, photo: Path, tmp_path: Path) -> None:
    page, image = tmp_path / "look.html", tmp_path / "look.png"
    look_at_pictures(use, [photo], html=page, png=image)
    text = page.read_text()
    layers = use.model.sizes.layers
    assert text.count("<summary>Layer ") == layers
    assert text.count("data:image/png;base64,") == layers + 4
    assert "&lt;photo&gt; &amp; co.png" in text
    assert "<photo>" not in text
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)
    assert "<script" not in text
    with Image.open(image) as opened:
        assert opened.width > 600


def test_several_pictures_get_numbered_images(use: ImageClassifier, photo: Path, tmp_path: Path) -> None:
    records = look_at_pictures(use, [photo, photo], png=tmp_path / "look.png")
    assert len(records) == 2
    assert (tmp_path / "look-1.png").exists()
    assert (tmp_path / "look-2.png").exists()
    with pytest.raises(QkvError, match="at least one"):
        look_at_pictures(use, [], html=tmp_path / "x.html")
    with pytest.raises(QkvError, match="written as PNG"):
        look_at_pictures(use, [photo], png=tmp_path / "x.gif")


def test_the_command_draws_pictures(use: ImageClassifier, photo: Path, tmp_path: Path) -> None:
    use.save(tmp_path / "model")
    arguments = ("look", tmp_path / "model", photo, "--device", "cpu", "--html", tmp_path / "look.html")
    outcome = qkv(*arguments)
    assert outcome.code == 0, outcome
    assert outcome.out.startswith(f"{photo}\t")
    assert (tmp_path / "look.html").exists()
    refused = qkv(*arguments, "--target", "a cat")
    assert refused.code == 2
    assert "--target is for models of texts" in refused.complaint
