"""`qkv train images`, from files to a model that names them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.api.test_pixel_probes import EVEN, LETTERS, written
from tests.cli.command import Outcome, qkv
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


@pytest.mark.parametrize("change", ["auto", "none", "light", "strong"])
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


def letters_in(folder: Path, letters: dict[str, list[str]] = LETTERS) -> Path:
    rows = written(letters)
    for number, (pixels, label) in enumerate(zip(rows.pixels, rows.labels, strict=True)):
        place = folder / rows.names[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


def bare(folder: Path, out: Path, *more: str | Path) -> tuple[Outcome, dict[str, Any]]:
    """The command with nothing but the data, a budget and a folder; what it told, and the run that it described."""
    outcome = qkv("train", "images", "--data", folder, "--device", "cpu", "--out", out, *more)
    assert outcome.code == 0, outcome
    return outcome, json.loads((out / "run.json").read_text())["settings"]


def test_the_bare_command_chooses_by_the_pictures_and_tells_what_and_how_to_choose_otherwise(tmp_path: Path) -> None:
    outcome, told = bare(letters_in(tmp_path / "letters"), tmp_path / "run", "--steps", "2")
    model, pictures, learning = outcome.err.splitlines()[:3]
    assert model == (
        "Model: a new vit for pictures of 32 × 32 behind 3 convolutions, 4 layers of width 96 "
        "(--family, --side, --size)."
    )
    assert re.fullmatch(
        r"Pictures: turned, zoomed and shifted a little at random, not mirrored: a probe of the pixels recognises \d+% "
        r"as they are, \d+% mirrored \(--change\)\.",
        pictures,
    )
    assert learning == (
        "Learning: batches of 64 by adamw, at a rate of 0.002 that rises over the first 10% of the run and then falls "
        "to 0; the last weights stay "
        "(--batch-rows, --optimizer, --learning-rate, --warmup, --schedule, --average, --ema)."
    )
    assert told["sizes"]["stem"] == 3
    assert told["data"]["augment"] == "InTurn(steps=(Moved(turn=10.0, zoom=0.1, shift=0.0625),))"
    assert told["data"]["batching"] == "RowCount(rows=64, multiple_of=1)"
    assert told["schedule"] == {"name": "TriStage", "rise": 0.1, "hold": 0.0}
    assert told["objective"]["smoothing"] == 0.05
    assert (told["train"]["average"], told["train"]["patience"]) == (1, None)


def test_shapes_that_are_their_own_mirror_are_mirrored(tmp_path: Path) -> None:
    outcome, told = bare(letters_in(tmp_path / "even", EVEN), tmp_path / "run", "--steps", "2")
    assert "Pictures: turned, zoomed, shifted and mirrored a little at random; a probe" in outcome.err
    assert told["data"]["augment"].endswith("Flip(probability=0.5)))")


def test_what_is_said_goes_before_what_would_be_chosen(tmp_path: Path) -> None:
    asked = ["--side", "16", "--size", "width=16,hidden=32,heads=2,layers=1,patch=4", "--change", "light",
             "--batch-rows", "8", "--learning-rate", "0.01", "--warmup", "1", "--average", "2"]  # fmt: skip
    outcome, told = bare(letters_in(tmp_path / "letters"), tmp_path / "run", *asked, "--steps", "3")
    assert "for pictures of 16 × 16 in patches of 4 × 4, 1 layer of width 16" in outcome.err
    assert "Pictures: changed as --change light says." in outcome.err
    assert "batches of 8 by adamw, at a rate of 0.01 that rises over 1 update and then falls to 0" in outcome.err
    assert "the mean of the last 2 checkpoints stay" in outcome.err
    assert (told["sizes"]["stem"], told["sizes"]["patch"]) == (None, 4)
    assert told["data"]["augment"] == "InTurn(steps=(Shift(most=2), Flip(probability=0.5)))"
    assert told["schedule"]["warmup"] == 1
    assert told["objective"]["smoothing"] == 0
    assert told["judged"]["recognised"] == {}  # nobody asked which changes are allowed


def test_a_linear_probe_stands_beside_every_score_and_a_verdict_at_the_end(tmp_path: Path) -> None:
    letters = letters_in(tmp_path / "letters")
    outcome, told = bare(letters, tmp_path / "run", "--steps", "2", *TINY[:2], "--hold-out", "0.2")
    scores = re.findall(r"accuracy ([\d.]+)  top5 \S+  linear_probe ([\d.]+)", outcome.err)
    assert len(scores) == 1
    assert float(scores[0][0]) < float(scores[0][1]) == pytest.approx(told["judged"]["linear"], abs=1e-3)
    assert re.search(r"Held out: .*linear_probe", outcome.out)
    assert "The model has learned less than a linear probe of the pixels: train it longer" in outcome.out


def test_a_run_that_goes_on_keeps_what_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = letters_in(tmp_path / "letters")
    first, before = bare(letters, tmp_path / "run", "--steps", "2", *TINY[:2])

    def asked_again(*_: Any) -> None:
        raise AssertionError("probes were asked again")

    monkeypatch.setattr("qkv.api.image_choice.recognised", asked_again)
    monkeypatch.setattr("qkv.api.image_choice.linear_score", asked_again)
    again, after = bare(letters, tmp_path / "run", "--steps", "4", *TINY[:2], "--resume")
    assert again.err.splitlines()[:3] == first.err.splitlines()[:3]
    assert after["judged"] == before["judged"]


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
        (["--change", "wild"], "auto, none, light, strong"),
        (["--size", "image=16"], "give --side"),
        (["--family", "gpt2"], "take vit or deit"),
        (["--family", "t5"], "take vit or deit"),
        (["--size", "width=18,heads=2,stem=3"], "divides by 4"),
        (["--batch-rows", "0"], "batch-rows"),
        (["--learning-rate", "-1"], "above 0"),
        (["--data", "absent"], "absent"),
    ],
)
def test_faults_are_told_in_one_line(folder: Path, tmp_path: Path, more: list[str], told: str) -> None:
    outcome = qkv("train", "images", "--data", folder, "--side", "8", "--steps", "2", "--device", "cpu",
                  "--out", tmp_path / "run", *more)  # fmt: skip
    assert outcome.code == 2
    assert told in outcome.complaint
