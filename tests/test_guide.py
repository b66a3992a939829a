"""What the guide shows works, and does what the guide says of it: its commands in order, then its Python."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import commands, paste

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "getting-started.md").read_text(encoding="utf-8")
TABLE = "word\tphonemes\ncat\tK AE T\ndog\tD AO G\nact\tAE K T\ngod\tG AA D\n"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


def test_four_words_are_learned_by_heart(tmp_path: Path) -> None:
    lines = [line for block in blocks("sh") for line in commands(block) if "words" in line]
    assert repr(TABLE)[1:-1] in GUIDE
    (tmp_path / "words.tsv").write_text(TABLE, encoding="utf-8")
    outcomes = {line.split()[1]: paste(line, tmp_path) for line in lines if line.startswith("qkv ")}
    assert {verb: outcome.code for verb, outcome in outcomes.items()} == {"train": 0, "run": 0, "look": 0}
    assert outcomes["run"].out.splitlines() == ["K AE T", "D AO G"]
    assert (tmp_path / "look.html").exists()


@pytest.mark.slow
def test_a_few_sentences_are_learned_by_heart(tmp_path: Path) -> None:
    (block,) = (block for block in blocks("sh") if "corpus.txt" in block)
    said = {}
    for line in commands(block):
        outcome = paste(line, tmp_path)
        assert outcome.code == 0, (line, outcome)
        said[" ".join(line.split()[1:3])] = outcome.out
    assert said["run runs/gpt"].split() == ["god", "created", "the", "heaven", "and", "the", "earth", "."]
    assert next(line.split("\t")[2] for line in said["run runs/bert"].splitlines()) == "light"
    assert said["run runs/sentiment"].startswith("positive")
    assert (tmp_path / "sentiment.html").exists()


def test_every_line_of_python_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.tsv").write_text(TABLE, encoding="utf-8")
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block.replace("steps=300", "steps=3"), "getting-started.md", "exec"), names)
    assert Path("cat.html").exists()
    assert tuple(names["y"].shape) == (2, 10, 64)
    (weights,) = names["ledger"].entries["attention.mixer/weights"]
    assert tuple(weights.shape) == (2, 4, 10, 10)
