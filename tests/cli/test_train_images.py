"""`qkv train images`, from files to a model that names them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.command import qkv
from tests.cli.shell import commands, paste

TINY = ["--size", "width=16,hidden=32,heads=2,layers=1", "--device", "cpu", "--steps", "3"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(12):
        place = tmp_path / "pictures" / ("warm" if number % 2 else "cold")
        place.mkdir(parents=True, exist_ok=True)
        colour = (200 + number, 30, 0) if number % 2 else (0, 30, 200 + number)
        Image.new("RGB", (20, 16), colour).save(place / f"{number}.png")
    return tmp_path / "pictures"


def test_the_example_works_as_pasted(tmp_path: Path) -> None:
    text = qkv("train", "images", "--help").out
    block = re.search(r"Example:\n(.*?)\n\n", text, flags=re.DOTALL)
    assert block is not None
    lines = commands(block.group(1))
    assert any("qkv train images" in line for line in lines)
    outcome = None
    for line in lines:
        outcome = paste(line, tmp_path)
        assert outcome.code == 0, (line, outcome)
    assert outcome is not None
    assert outcome.out.startswith(("warm\t", "cold\t"))


@pytest.mark.parametrize("change", ["none", "light", "strong"])
def test_a_folder_of_classes_is_learned(folder: Path, tmp_path: Path, change: str) -> None:
    (folder / "warm" / "broken.png").write_bytes(b"not a picture")
    outcome = qkv("train", "images", "--data", folder, "--side", "8", "--change", change, "--hold-out", "0.2",
                  "--out", tmp_path / "run", *TINY)  # fmt: skip
    assert outcome.code == 0, outcome
    assert "10 pictures to train on, 2 to validate on" in outcome.err
    assert "broken.png" in outcome.err
    assert "Held out: " in outcome.out
    assert "accuracy" in outcome.out


def test_a_table_and_a_loaded_model(folder: Path, tmp_path: Path) -> None:
    lines = [f"{file.relative_to(folder)},{file.parent.name}" for file in sorted(folder.rglob("*.png"))]
    (folder / "table.csv").write_text("file,kind\n" + "\n".join(lines) + "\n")
    columns = ["--data", folder / "table.csv", "--image", "file", "--label", "kind", "--hold-out", "0"]
    stored = tmp_path / "kept.npy"
    first = qkv("train", "images", *columns, "--side", "8", "--stored", stored, "--out", tmp_path / "first", *TINY)
    assert first.code == 0, first
    assert np.load(stored).shape == (12, 8, 8, 3)
    again = qkv("train", "images", *columns, "--model", tmp_path / "first", "--out", tmp_path / "again", *TINY[2:])
    assert again.code == 0, again


def test_a_published_set_is_learned(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 6)):
        np.save(tmp_path / f"{part}-images.npy", draw.integers(0, 256, (count, 8, 8), np.uint8))
        np.save(tmp_path / f"{part}-labels.npy", (np.arange(count) % 2).astype(np.uint8))
    outcome = qkv("train", "images", "--data", tmp_path, "--valid", tmp_path, "--out", tmp_path / "run", *TINY)
    assert outcome.code == 0, outcome
    assert "20 pictures to train on, 6 to validate on" in outcome.err
    again = qkv("train", "images", "--data", tmp_path, "--model", tmp_path / "run", "--out", tmp_path / "again",
                *TINY[2:])  # fmt: skip
    assert again.code == 0, again


def test_a_model_is_fine_tuned_at_another_resolution(folder: Path, tmp_path: Path) -> None:
    where = ["--data", folder, "--hold-out", "0"]
    assert qkv("train", "images", *where, "--side", "8", "--out", tmp_path / "first", *TINY).code == 0
    outcome = qkv("train", "images", *where, "--side", "12", "--model", tmp_path / "first",
                  "--out", tmp_path / "larger", *TINY[2:])  # fmt: skip
    assert outcome.code == 0, outcome
    assert json.loads((tmp_path / "larger" / "config.json").read_text())["sizes"]["image"] == 12
    assert qkv("run", tmp_path / "larger", folder / "warm" / "1.png", "--device", "cpu").code == 0


def test_a_deit_learns_from_a_teacher_that_was_trained_before(folder: Path, tmp_path: Path) -> None:
    where = ["--data", folder, "--hold-out", "0.2"]
    assert qkv("train", "images", *where, "--side", "12", "--out", tmp_path / "teacher", *TINY).code == 0
    taught = ["--teacher", tmp_path / "teacher", "--side", "8", "--out", tmp_path / "deit", *TINY]
    outcome = qkv("train", "images", *where, "--family", "deit", *taught)
    assert outcome.code == 0, outcome
    assert json.loads((tmp_path / "deit" / "config.json").read_text())["head"]["kind"] == "distilled"
    further = qkv("train", "images", *where, "--model", tmp_path / "deit", "--teacher", tmp_path / "teacher",
                  "--out", tmp_path / "further", *TINY[2:])  # fmt: skip
    assert further.code == 0, further
    assert "give --family deit" in qkv("train", "images", *where, *taught, "--overwrite").complaint


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--length", "9"], "--length is for texts"),
        (["--change", "wild"], "none, light, strong"),
        (["--size", "image=16"], "give --side"),
        (["--family", "gpt2"], "take vit or deit"),
        (["--learning-rate", "-1"], "above 0"),
        (["--data", "absent"], "absent"),
    ],
)
def test_faults_are_told_in_one_line(folder: Path, tmp_path: Path, more: list[str], told: str) -> None:
    outcome = qkv("train", "images", "--data", folder, "--side", "8", "--steps", "2", "--device", "cpu",
                  "--out", tmp_path / "run", *more)  # fmt: skip
    assert outcome.code == 2
    assert told in outcome.complaint
