"""What the guide to tasks of texts shows works: its commands in order, and its Python after them."""

import re
from pathlib import Path

import pytest

import qkv
from tests.cli.shell import commands, paste
from tests.cli.text_models import save_reader

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "tasks.md").read_text(encoding="utf-8")
REVIEWS = [
    ("it was good", "positive"),
    ("the light was good", "positive"),
    ("so good", "positive"),
    ("the darkness", "negative"),
    ("without form", "negative"),
    ("the void", "negative"),
]


def test_every_command_and_every_line_of_python_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_reader(tmp_path / "runs" / "bert", "masked")
    rows = "".join(f"{text},{label}\n" for text, label in REVIEWS)
    (tmp_path / "reviews.csv").write_text(f"text,label\n{rows}")
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, flags=re.DOTALL):
        for line in commands(block):
            line, _, kept = line.partition(" > labelled") if "> labelled" in line else (line, "", "")
            outcome = paste(line, tmp_path)
            assert outcome.code == 0, (line, outcome)
            if kept:
                (tmp_path / f"labelled{kept}").write_text(outcome.out)
    assert (tmp_path / "labelled.jsonl").read_text().count('"label"') == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL):
        exec(compile(block, "tasks.md", "exec"), names)
    assert qkv.load("runs/student").model.sizes.layers == qkv.load("runs/student-2").model.sizes.layers == 1
    assert isinstance(qkv.load("runs/rate"), qkv.Rater)
    assert callable(qkv.harness_model)
