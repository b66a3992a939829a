"""`qkv run` with pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.data.preprocessing import Exactly, Normalise, Preprocessing
from qkv.generate.image_readers import use_of_images
from tests.cli.command import qkv
from tests.models.small_images import small_model

WAY = Preprocessing(resize=Exactly(12, 12), normalise=Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3))


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "one.png", tmp_path / "two.jpg"]
    for number, file in enumerate(files):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), np.uint8)
        Image.fromarray(pixels).save(file)
    return files


def saved(folder: Path, kind: str) -> Path:
    use_of_images(small_model("vit", kind), WAY).save(folder)
    return folder


def test_photos_are_named(tmp_path: Path, photos: list[Path]) -> None:
    model = saved(tmp_path / "model", "classification")
    plain = qkv("run", model, *photos, "--device", "cpu")
    assert plain.code == 0, plain
    lines = [line.split("\t") for line in plain.out.splitlines()]
    assert [label in ("bad", "fair", "good") for label, _ in lines] == [True, True]
    best = qkv("run", model, *photos, "--n-best", "2", "--device", "cpu").out.splitlines()
    assert [line.split("\t")[0] for line in best] == ["1", "1", "2", "2"]
    assert best[0].split("\t")[1:] == [lines[0][1], lines[0][0]]
    answer = json.loads(qkv("run", model, photos[0], "--json", "--device", "cpu").out)
    assert answer["label"] == lines[0][0]
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_photos_become_vectors_and_states(tmp_path: Path, photos: list[Path]) -> None:
    model = saved(tmp_path / "vectors", "embedding")
    assert len(json.loads(qkv("run", model, photos[0], "--device", "cpu").out)) == small_model("vit").sizes.width
    like = qkv("run", model, *photos, "--similar", photos[0], "--device", "cpu").out.splitlines()
    assert like[0] == f"1.0000\t{photos[0]}"
    model = saved(tmp_path / "states", "states")
    assert len(json.loads(qkv("run", model, photos[0], "--device", "cpu").out)) == 10


def test_hidden_patches_of_photos_are_guessed(tmp_path: Path, photos: list[Path]) -> None:
    model = saved(tmp_path / "patches", "masked")
    plain = qkv("run", model, *photos, "--device", "cpu").out.splitlines()
    assert np.array(json.loads(plain[0])).shape == (3, 3, 3)
    answer = json.loads(qkv("run", model, photos[1], "--json", "--device", "cpu").out)
    assert answer["colours"] == json.loads(plain[1])


def test_faults_are_told_in_one_line(tmp_path: Path, photos: list[Path]) -> None:
    model = saved(tmp_path / "model", "classification")
    (tmp_path / "broken.jpg").write_bytes(photos[1].read_bytes()[:300])
    for arguments, told in [
        ([tmp_path / "absent.jpg"], "There is no image file"),
        ([tmp_path / "broken.jpg"], "broken or was cut short"),
        ([photos[0], "--beams", "4"], "--beams is for translators and language models"),
        ([photos[0], "--n-best", "0"], "1 label at least"),
    ]:
        outcome = qkv("run", model, *arguments, "--device", "cpu")
        assert outcome.code == 2
        assert told in outcome.complaint
