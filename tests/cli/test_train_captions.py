"""`qkv train captions`, from a table to a model that tells classes in words."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.command import qkv
from tests.cli.shell import commands, paste

TINY = ["--size", "image_width=16,image_heads=2,image_layers=1,text_width=16,text_heads=2,text_layers=1",
        "--tokenizer", "word", "--side", "8", "--device", "cpu", "--steps", "3"]  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = []
    for number in range(12):
        name, colour = ("warm", (200, 30 + number, 0)) if number % 2 else ("cold", (0, 30 + number, 200))
        Image.new("RGB", (20, 16), colour).save(tmp_path / f"{number}.png")
        texts = [f"a {name} colour number {number}", name]
        lines.append(json.dumps({"picture": f"{number}.png", "said": texts if number % 3 else texts[0]}))
    lines.append(json.dumps({"picture": "absent.png", "said": "nothing"}))
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    lines.append(json.dumps({"picture": "broken.png", "said": "a broken one"}))
    (tmp_path / "table.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "table.jsonl"


def test_the_example_works_as_pasted(tmp_path: Path) -> None:
    text = qkv("train", "captions", "--help").out
    block = re.search(r"Example:\n(.*?)\n\n", text, flags=re.DOTALL)
    assert block is not None
    lines = commands(block.group(1))
    assert any("qkv train captions" in line for line in lines)
    outcome = None
    for line in lines:
        outcome = paste(line, tmp_path)
        assert outcome.code == 0, (line, outcome)
    assert outcome is not None
    assert outcome.out.startswith(("warm\t", "cold\t"))


def test_a_table_is_learned_and_its_model_used_and_trained_further(table: Path, tmp_path: Path) -> None:
    columns: list[str | Path] = ["--data", table, "--image", "picture", "--text", "said"]
    outcome = qkv("train", "captions", *columns, "--hold-out", "0.2", "--change", "light", "--stored",
                  tmp_path / "kept.npy", "--out", tmp_path / "run", *TINY)  # fmt: skip
    assert outcome.code == 0, outcome
    assert "to validate on; clip" in outcome.err
    assert "broken.png" in outcome.err
    assert "absent.png" in outcome.err
    assert "accuracy" in outcome.out
    told = ["--classes", "warm,cold", "--template", "a {} colour", "--template", "{}", "--device", "cpu"]
    found = [
        qkv("run", tmp_path / "run", tmp_path / "1.png", *told, *more) for more in ([], ["--n-best", "2"], ["--json"])
    ]
    assert re.fullmatch(r"(warm|cold)\t0\.\d{4}\n", found[0].out)
    assert len(found[1].out.splitlines()) == 2
    assert json.loads(found[2].out)["probabilities"].keys() == {"warm", "cold"}
    again = qkv("train", "captions", *columns, "--valid", table, "--model", tmp_path / "run",
                "--out", tmp_path / "again", "--device", "cpu", "--steps", "2")  # fmt: skip
    assert again.code == 0, again


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--length", "9"], "--length is not for captions"),
        (["--change", "wild"], "none, light, strong"),
        (["--size", "vocabulary=16"], "give --side and --tokenizer"),
        (["--tokenizer", "wild"], "no tokenizer kind called 'wild'"),
        (["--learning-rate", "-1"], "above 0"),
        (["--data", "absent"], "absent"),
        (["--model", "absent"], "leave them out beside --model"),
    ],
)
def test_faults_are_told_in_one_line(table: Path, tmp_path: Path, more: list[str], told: str) -> None:
    outcome = qkv("train", "captions", "--data", table, "--image", "picture", "--text", "said", "--out",
                  tmp_path / "run", *TINY, *more)  # fmt: skip
    assert outcome.code == 2
    assert told in outcome.complaint


def test_classes_are_asked_for_in_a_way_that_makes_sense(table: Path, tmp_path: Path) -> None:
    qkv("train", "captions", "--data", table, "--image", "picture", "--text", "said", "--out", tmp_path / "run",
        "--hold-out", "0", *TINY)  # fmt: skip
    for more, told in [
        (["--template", "{}"], "give these with --classes"),
        (["--classes", "a,b", "--similar", "c"], "give one of the two"),
        (["--classes", "a,a"], "each a different one"),
        (["--classes", "a,b", "--template", "no place"], "no place for a label"),
    ]:
        outcome = qkv("run", tmp_path / "run", tmp_path / "1.png", "--device", "cpu", *more)
        assert outcome.code == 2
        assert told in outcome.complaint
