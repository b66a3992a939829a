"""What the README shows works: its commands in order, then its Python, on a little of the packaged dictionary."""

import re
from pathlib import Path

import pytest
from PIL import Image

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
    for kind, colour in (("warm", (250, 40, 0)), ("cold", (0, 40, 250))):
        (folder / "pictures" / kind).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (16, 16), (*colour[:1], 40 + number, *colour[2:])).save(
                folder / "pictures" / kind / f"{number}.png"
            )
    Image.new("RGB", (20, 16), (240, 50, 9)).save(folder / "photo.jpg")
    return folder


def test_the_table_that_is_shown_has_the_columns_that_are_named(folder: Path) -> None:
    (shown,) = blocks("tsv")
    assert shown.splitlines()[0] == (folder / "words.tsv").read_text().splitlines()[0]


def test_every_command_works(folder: Path) -> None:
    lines = [line for block in blocks("sh") for line in commands(block) if line.startswith("qkv ")]
    words, text = ["train", "run", "run", "look"], ["train", "run", "train", "train", "run", "train", "run", "train"]
    pictures = ["train", "run", "look"]
    assert [line.split()[1] for line in lines] == ["run", *words, *text, *pictures, "models"]
    for line in lines:
        # Five minutes are too long for a test; so are seven million parameters.
        quick = ["--steps", "3"] if " train " in line else []
        heads = ",heads=2" if " images " in line else ""
        quick += ["--size", f"width=16,hidden=16,layers=1{heads}"] if quick and "--model" not in line else []
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


def test_every_score_stands_on_the_page_it_leads_to() -> None:
    """The pages are written from the runs; the README repeats them."""
    (table,) = re.findall(r"\| what \| score on data never seen \|\n\|---\|---\|\n((?:\|.*\|\n)+)", README)
    for row in table.splitlines():
        what, scores = row.strip("| ").split(" | ")
        (page,) = re.findall(r"\((docs/results/[a-z-]+\.md)\)", what)
        text = (Path(__file__).resolve().parent.parent / page).read_text(encoding="utf-8")
        found = re.findall(r"\d+\.\d+", scores)
        assert found, row
        assert [score for score in found if score not in text] == [], page
