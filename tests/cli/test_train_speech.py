"""`qkv train frames` and `qkv train speech`: from files to a model that writes."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.cli.command import qkv
from tests.cli.shell import commands, paste

SIZE = "width=16,hidden=32,heads=2,layers=1,position_groups=2,position_kernel=8"
TINY = ["--device", "cpu", "--steps", "2", "--batch-rows", "4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    time = np.arange(4000) / 8000
    lines = ["clip,said"]
    for number in range(8):
        place = tmp_path / "sounds" / ("high" if number % 2 else "low")
        place.mkdir(parents=True, exist_ok=True)
        wave = np.sin(2 * np.pi * (200 + 2000 * (number % 2) + 10 * number) * time)
        soundfile.write(place / f"{number}.wav", wave * 0.5, 8000)
        lines.append(f"{place.name}/{number}.wav,{place.name} {'abcdefgh'[number]}")
    (tmp_path / "sounds/table.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "sounds"


@pytest.mark.slow
def test_the_examples_work_as_pasted(tmp_path: Path) -> None:
    for verb in ("sounds", "frames", "speech"):
        block = re.search(r"Example.*?:\n(.*?)\n\n", qkv("train", verb, "--help").out, flags=re.DOTALL)
        assert block is not None
        for line in commands(block.group(1)):
            if verb == "sounds" and "qkv" in line:
                continue  # only its sounds are needed
            outcome = paste(line, tmp_path)
            assert outcome.code == 0, (line, outcome)


def test_frames_then_speech(folder: Path, tmp_path: Path) -> None:
    alone = qkv("train", "frames", "--data", folder, "--seconds", "1", "--hold-out", "0.3", "--size", SIZE,
                "--warmup", "1", "--learning-rate", "1e-3", "--out", tmp_path / "alone", *TINY)  # fmt: skip
    assert alone.code == 0, alone
    assert "of sound to learn from" in alone.err
    assert "accuracy" in alone.out
    assert f"qkv train speech --model {tmp_path / 'alone'}" in alone.out
    columns = ["--data", folder / "table.csv", "--sound", "clip", "--text", "said", "--hold-out", "0.3"]
    tuned = qkv("train", "speech", *columns, "--model", tmp_path / "alone", "--head-first", "1", "--warmup", "1",
                "--size", "dropout=0.2,hidden_share=0.1", "--out", tmp_path / "tuned", *TINY)  # fmt: skip
    assert tuned.code == 0, tuned
    assert "wer" in tuned.out
    assert "Examples it never saw:" in tuned.out
    written = qkv("run", tmp_path / "tuned", folder / "low/0.wav")
    assert written.code == 0, written
    further = qkv("train", "frames", "--data", folder / "table.csv", "--sound", "clip", "--seconds", "1", "--model",
                  tmp_path / "alone", "--hold-out", "0", "--out", tmp_path / "further", *TINY)  # fmt: skip
    assert further.code == 0, further


def test_a_new_model_learns_to_write_and_then_more(folder: Path, tmp_path: Path) -> None:
    columns = ["--data", folder / "table.csv", "--sound", "clip", "--text", "said", "--hold-out", "0"]
    new = qkv("train", "speech", *columns, "--size", SIZE, "--out", tmp_path / "new", *TINY)
    assert new.code == 0, new
    assert "Examples it was trained on:" in new.out
    more = qkv("train", "speech", *columns, "--model", tmp_path / "new", "--all-frames", "--out", tmp_path / "more",
               *TINY)  # fmt: skip
    assert more.code == 0, more


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        ("frames", ["--length", "3"], "--length is for texts"),
        ("frames", ["--model", "m", "--size", "base"], "--size is for a new model"),
        ("frames", ["--learning-rate", "-1"], "above 0 and finite"),
        ("frames", ["--hidden", "2"], "a share from 0 to 1"),
        ("frames", ["--data", "empty"], "holds no sound"),
        ("frames", ["--model", "nowhere", "--size", "desk"], "nowhere"),
        ("speech", ["--head-first", "3"], "for a given model"),
        ("speech", ["--all-frames"], "for a given model"),
        ("speech", ["--sound", "nothing"], "nothing"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(
    verb: str, options: list[str], said: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    place = {"frames": str(folder), "speech": str(folder / "table.csv")}[verb]
    if "--data" in options:
        place = str(tmp_path / options[-1])
        options = []
    outcome = qkv("train", verb, "--data", place, "--out", tmp_path / "out", "--size", SIZE, *TINY, *options)
    assert outcome.code == 2, outcome
    assert said in outcome.err
    assert not (tmp_path / "out/run.json").exists()
