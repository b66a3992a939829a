"""What the README shows works: its commands in order, then its Python, on a little of the packaged dictionary."""

import re
from pathlib import Path

import pytest

from qkv.data.pronunciation import pronunciation_splits
from tests.api.corpus import DOCUMENTS, VERSES
from tests.cli.command import write_words
from tests.cli.shell import commands, paste

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    words = dict(pronunciation_splits().train[::2000])
    write_words(folder / "words.tsv", {**words, "cough": "K AO F", "though": "DH OW"})
    (folder / "corpus.txt").write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    rows = [f"{verse},{'good' if 'light' in verse else 'bad'}" for verse in VERSES if "," not in verse]
    (folder / "reviews.csv").write_text("\n".join(["text,label", *rows, "let there be light,good"]), encoding="utf-8")
    return folder


def test_the_table_that_is_shown_has_the_columns_that_are_named(folder: Path) -> None:
    (shown,) = blocks("tsv")
    assert shown.splitlines()[0] == (folder / "words.tsv").read_text().splitlines()[0]


def test_every_command_works(folder: Path) -> None:
    lines = [line for block in blocks("sh") for line in commands(block) if line.startswith("qkv ")]
    words, text = ["train", "run", "run", "look"], ["train", "run", "train", "train", "run", "train", "run", "train"]
    assert [line.split()[1] for line in lines] == [*words, *text, "models"]
    for line in lines:
        # Five minutes are too long for a test; so are seven million parameters.
        quick = ["--steps", "3"] if " train " in line else []
        quick += ["--size", "width=16,hidden=16,layers=1"] if quick and "--model" not in line else []
        outcome = paste(line, folder, *quick)
        assert outcome.code == 0, (line, outcome)


def test_every_line_of_python_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    if not Path("runs/words").exists():  # when this test runs alone
        test_every_command_works(folder)
    for block in blocks("python"):
        exec(compile(block.replace("minutes=5", "steps=3"), "README.md", "exec"), {})
    assert "'per':" in capsys.readouterr().out
    assert Path("cough.html").exists()
