"""`qkv train objects`, from boxes in files to a model that finds things."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from qkv.data.boxes import Box, coco_annotations
from tests.cli.command import qkv
from tests.cli.shell import commands, paste

TINY = ["--size", "width=16,hidden=16,heads=2,layers=1,queries=4", "--side", "32", "--device", "cpu", "--steps", "2"]


@pytest.fixture
def boxed(tmp_path: Path) -> dict[str, Path]:
    """The same pictures in a table and in a COCO file."""
    (tmp_path / "pictures").mkdir()
    lines, images, boxes = [], [], []
    for number in range(10):
        picture = Image.new("RGB", (40, 30), (90, 90, 90))
        picture.paste((220, 20, 20) if number % 2 else (20, 20, 220), (5, 5, 20, 20))
        picture.save(tmp_path / "pictures" / f"{number}.png")
        label = "red" if number % 2 else "blue"
        lines.append({"file": f"{number}.png", "things": [{"label": label, "box": [5, 5, 20, 20]}]})
        images.append({"id": number, "file_name": f"{number}.png"})
        boxes.append([Box(label, 1.0, 5, 5, 20, 20)])
    lines.append({"file": "9.png", "things": [{"label": "red", "box": [5, 5, 5, 20]}]})
    (tmp_path / "pictures" / "table.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "coco.json").write_text(json.dumps(coco_annotations(images, boxes, ("blue", "red"))))
    return {"table": tmp_path / "pictures" / "table.jsonl", "coco": tmp_path / "coco.json"}


def test_the_example_works_as_pasted(tmp_path: Path) -> None:
    text = qkv("train", "objects", "--help").out
    block = re.search(r"Example:\n(.*?)\n\n", text, flags=re.DOTALL)
    assert block is not None
    script = block.group(1).replace("; do\n", "; do ")
    lines = commands(script)
    assert any("qkv train objects" in line for line in lines)
    outcome = None
    for line in lines:
        outcome = paste(line, tmp_path)
        assert outcome.code == 0, (line, outcome)
    assert outcome is not None
    assert outcome.out.splitlines()[0].endswith("\tsea")


def test_a_table_is_learned_and_its_model_used_and_trained_further(boxed: dict[str, Path], tmp_path: Path) -> None:
    outcome = qkv("train", "objects", "--data", boxed["table"], "--image", "file", "--boxes", "things",
                  "--hold-out", "0.2", "--out", tmp_path / "run", *TINY)  # fmt: skip
    assert outcome.code == 0, outcome
    assert "8 pictures to train on, 2 to validate on; detr" in outcome.err
    assert "without an inside" in outcome.err
    assert "map50" in outcome.out
    coco = ["--data", str(boxed["coco"]), "--valid", str(boxed["coco"]), "--pictures", str(tmp_path / "pictures")]
    more = ["--model", str(tmp_path / "run"), "--device", "cpu", "--steps", "2"]
    again = qkv("train", "objects", *coco, *more, "--out", tmp_path / "again")
    assert again.code == 0, again
    assert "10 pictures to train on, 10 to validate on" in again.err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--length", "9"], "--length is for texts"),
        (["--learning-rate", "-1"], "above 0"),
        (["--backbone-rate", "3"], "share of the rate"),
        (["--mirrored", "2"], "from 0 to 1"),
        (["--format", "csv"], "COCO file, or a table"),
        (["--pictures", "absent"], "belongs to a COCO file"),
        (["--data", "absent.json"], "absent.json"),
        (["--model", "absent"], "leave them out beside --model"),
    ],
)
def test_faults_are_told_in_one_line(boxed: dict[str, Path], tmp_path: Path, more: list[str], told: str) -> None:
    outcome = qkv("train", "objects", "--data", boxed["table"], "--image", "file", "--boxes", "things", "--out",
                  tmp_path / "run", *TINY, *more)  # fmt: skip
    assert outcome.code == 2
    assert told in outcome.complaint
