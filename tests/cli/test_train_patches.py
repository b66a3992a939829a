"""`qkv train patches`, from files to a model that can be fine-tuned."""

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
    draw = np.random.default_rng(0)
    for number in range(12):
        place = tmp_path / "pictures" / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (16, 20, 3), np.uint8)).save(place / f"{number}.png")
    return tmp_path / "pictures"


def example(verb: str) -> list[str]:
    block = re.search(r"Example.*?:\n(.*?)\n\n", qkv("train", verb, "--help").out, flags=re.DOTALL)
    assert block is not None
    return commands(block.group(1))


def test_the_example_works_as_pasted_after_that_of_images(tmp_path: Path) -> None:
    made = [line for line in example("images") if "qkv" not in line]
    lines = example("patches")
    assert len(lines) == 2
    for line in [*made, *lines]:
        outcome = paste(line, tmp_path)
        assert outcome.code == 0, (line, outcome)


def test_files_below_a_folder_and_in_a_table_are_learned(folder: Path, tmp_path: Path) -> None:
    (folder / "1" / "broken.png").write_bytes(b"not a picture")
    outcome = qkv("train", "patches", "--data", folder, "--side", "8", "--hold-out", "0.2",
                  "--out", tmp_path / "run", *TINY)  # fmt: skip
    assert outcome.code == 0, outcome
    assert "10 pictures to train on, 2 to validate on" in outcome.err
    assert "broken.png" in outcome.err
    assert "qkv train images --model" in outcome.out
    lines = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*.png")) if file.stem.isdecimal()]
    (folder / "table.csv").write_text("file\n" + "\n".join(lines) + "\n")
    further = qkv("train", "patches", "--data", folder / "table.csv", "--image", "file", "--hold-out", "0",
                  "--model", tmp_path / "run", "--stored", tmp_path / "kept.npy", "--out", tmp_path / "more",
                  *TINY[2:])  # fmt: skip
    assert further.code == 0, further
    assert np.load(tmp_path / "kept.npy").shape == (12, 8, 8, 3)


def test_a_published_set_is_learned_whatever_its_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "train-images.npy", np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8))
    np.save(tmp_path / "train-labels.npy", (np.arange(20) % 2).astype(np.uint8))
    pretrained = qkv("train", "patches", "--data", tmp_path, "--hold-out", "0.2", "--out", tmp_path / "run", *TINY)
    assert pretrained.code == 0, pretrained
    tuned = qkv("train", "images", "--data", tmp_path, "--model", tmp_path / "run", "--out", tmp_path / "tuned",
                *TINY[2:])  # fmt: skip
    assert tuned.code == 0, tuned


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--length", "9"], "--length is for texts"),
        (["--change", "strong"], "none, light"),
        (["--size", "image=16"], "give --side"),
        (["--hidden", "0"], "share of the patches"),
        (["--learning-rate", "0"], "above 0"),
        (["--data", "absent"], "absent"),
    ],
)
def test_faults_are_told_in_one_line(folder: Path, tmp_path: Path, more: list[str], told: str) -> None:
    outcome = qkv("train", "patches", "--data", folder, "--side", "8", "--steps", "2", "--device", "cpu",
                  "--out", tmp_path / "run", *more)  # fmt: skip
    assert outcome.code == 2
    assert told in outcome.complaint
