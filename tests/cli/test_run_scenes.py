"""`qkv run` with models that find objects and keypoints."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.data.preprocessing import EdgesUpTo, Exactly, Preprocessing
from qkv.generate.detect import Detector
from qkv.generate.keypoints import KeypointFinder
from tests.cli.command import qkv
from tests.generate.test_detect import small_detector
from tests.generate.test_keypoints import NAMES, small_model


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "one.png", tmp_path / "two.jpg"]
    for number, file in enumerate(files):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30 + 10 * number, 3), np.uint8)
        Image.fromarray(pixels).save(file)
    return files


def test_objects_are_told_and_drawn(tmp_path: Path, photos: list[Path]) -> None:
    Detector(small_detector(), Preprocessing(resize=EdgesUpTo(32, 64), padding="to largest")).save(tmp_path / "model")
    found = qkv(
        "run", tmp_path / "model", *photos, "--least", "0", "--draw", tmp_path / "drawn", "--device", "cpu"
    )  # fmt: skip
    assert found.code == 0, found
    lines = [line.split("\t") for line in found.out.splitlines()]
    assert [line[0] for line in lines] == ["1"] * 6 + ["2"] * 6
    assert all(len(line) == 7 for line in lines)
    assert {line[-1] for line in lines} <= {"ant", "bee", "cat"}
    assert sorted(file.name for file in (tmp_path / "drawn").iterdir()) == ["1-one.png", "2-two.png"]
    answer = json.loads(qkv("run", tmp_path / "model", photos[0], "--least", "0", "--json", "--device", "cpu").out)
    assert answer["boxes"][0]["probability"] == pytest.approx(float(lines[0][1]), abs=2e-4)
    none = qkv("run", tmp_path / "model", photos[0], "--least", "1", "--device", "cpu")
    assert (none.code, none.out) == (0, "")


def test_keypoints_are_told_and_drawn(tmp_path: Path, photos: list[Path]) -> None:
    KeypointFinder(small_model(), Preprocessing(resize=Exactly(64, 48))).save(tmp_path / "model")
    found = qkv("run", tmp_path / "model", *photos, "--json", "--device", "cpu")
    assert found.code == 0, found
    assert [json.loads(line)["input"] for line in found.out.splitlines()] == [str(file) for file in photos]
    shown = qkv("run", tmp_path / "model", *photos, "--draw", tmp_path / "drawn", "--device", "cpu")
    assert shown.code == 0, shown
    assert all(line.split("\t")[-1] in NAMES for line in shown.out.splitlines())
    assert (tmp_path / "drawn" / "1-one.png").exists()


def test_faults_are_told_in_one_line(tmp_path: Path, photos: list[Path]) -> None:
    model = tmp_path / "model"
    Detector(small_detector(), Preprocessing(resize=EdgesUpTo(32, 64), padding="to largest")).save(model)
    for arguments, told in [
        ([tmp_path / "absent.jpg"], "There is no image file"),
        ([photos[0], "--least", "2"], "from 0 to 1"),
        ([photos[0], "--beams", "2"], "leave it out"),
        ([photos[0], "--draw", photos[1]], "name another folder"),
    ]:
        outcome = qkv("run", model, *arguments, "--device", "cpu")
        assert outcome.code == 2, outcome
        assert told in outcome.err
