"""`qkv train sounds`, from files to a model that names them."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qkv.generate.image_readers import ImageClassifier
from tests.cli.command import qkv
from tests.cli.shell import commands, paste
from tests.look.test_picture_maps import WAY
from tests.models.small_images import small_model

TINY = ["--size", "width=16,hidden=32,heads=2,layers=1", "--device", "cpu", "--steps", "3"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    time = np.arange(4000) / 8000
    for number in range(12):
        place = tmp_path / "sounds" / ("high" if number % 2 else "low")
        place.mkdir(parents=True, exist_ok=True)
        wave = np.sin(2 * np.pi * (200 + 2000 * (number % 2) + 10 * number) * time)
        soundfile.write(place / f"{number}.wav", wave * 0.5, 8000)
    return tmp_path / "sounds"


def test_the_example_works_as_pasted(tmp_path: Path) -> None:
    text = qkv("train", "sounds", "--help").out
    block = re.search(r"Example:\n(.*?)\n\n", text, flags=re.DOTALL)
    assert block is not None
    lines = commands(block.group(1))
    assert any("qkv train sounds" in line for line in lines)
    outcome = None
    for line in lines:
        outcome = paste(line, tmp_path)
        assert outcome.code == 0, (line, outcome)
    assert outcome is not None
    assert outcome.out.startswith("low\t")


@pytest.mark.parametrize("change", ["none", "light", "strong"])
def test_a_folder_of_classes_is_learned(folder: Path, tmp_path: Path, change: str) -> None:
    (folder / "high" / "broken.wav").write_bytes(b"not a sound")
    outcome = qkv("train", "sounds", "--data", folder, "--seconds", "0.3", "--change", change, "--hold-out", "0.2",
                  "--out", tmp_path / "run", *TINY)  # fmt: skip
    assert outcome.code == 0, outcome
    assert "10 sounds to train on, 2 to validate on" in outcome.err
    assert "broken.wav" in outcome.err
    assert "Held out: " in outcome.out
    assert f"qkv look {tmp_path / 'run'} sound.wav" in outcome.out


def test_a_table_and_a_loaded_model(folder: Path, tmp_path: Path) -> None:
    lines = [f"{file.relative_to(folder)},{file.parent.name}" for file in sorted(folder.rglob("*.wav"))]
    (folder / "table.csv").write_text("clip,kind\n" + "\n".join(lines) + "\n")
    columns = ["--data", folder / "table.csv", "--sound", "clip", "--label", "kind", "--hold-out", "0"]
    first = qkv("train", "sounds", *columns, "--out", tmp_path / "first", *TINY)
    assert first.code == 0, first
    assert "Examples it was trained on" in first.out
    again = qkv("train", "sounds", *columns, "--model", tmp_path / "first", "--out", tmp_path / "again", *TINY[2:])
    assert again.code == 0, again


def test_a_model_of_waves_and_one_that_begins_with_pictures(folder: Path, tmp_path: Path) -> None:
    size = "width=16,hidden=32,heads=2,layers=1,position_kernel=8,position_groups=2,decision_width=8"
    waves = qkv("train", "sounds", "--data", folder, "--family", "wav2vec2", "--size", size, "--change", "strong",
                "--steps", "1", "--device", "cpu", "--out", tmp_path / "waves")  # fmt: skip
    assert waves.code == 0, waves
    seer = small_model("vit", "classification")
    ImageClassifier(seer, WAY).save(tmp_path / "seer")
    sizes = seer.sizes
    size = f"patch=4,frequency_stride=4,time_stride=4,width={sizes.width},hidden={sizes.hidden},heads={sizes.heads}"
    begun = qkv("train", "sounds", "--data", folder, "--start", tmp_path / "seer", "--seconds", "0.1", "--steps", "1",
                "--size", f"{size},layers={sizes.layers}", "--device", "cpu", "--out", tmp_path / "begun")  # fmt: skip
    assert begun.code == 0, begun


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--length", "9"], "--length is for texts"),
        (["--change", "wild"], "none, light, strong"),
        (["--size", "frames=16"], "give --seconds"),
        (["--family", "whisper"], "take ast or wav2vec2"),
        (["--learning-rate", "-1"], "above 0"),
        (["--seconds", "0.01"], "less than one patch"),
        (["--data", "absent"], "absent"),
    ],
)
def test_faults_are_told_in_one_line(folder: Path, tmp_path: Path, more: list[str], told: str) -> None:
    outcome = qkv("train", "sounds", "--data", folder, "--steps", "2", "--device", "cpu", "--out", tmp_path / "run",
                  *more)  # fmt: skip
    assert outcome.code == 2
    assert told in outcome.complaint
