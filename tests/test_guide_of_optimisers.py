"""What the guide to optimisers shows works: its commands, made small, its Python, and its table."""

import re
from pathlib import Path

import pytest

from qkv.train.optimizers import OPTIMIZERS
from qkv.train.schedules import SCHEDULES
from tests.api.corpus import DOCUMENTS
from tests.cli.shell import commands, paste
from tests.guides import blocks

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "optimisers.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    return tmp_path


def test_its_commands_work(folder: Path) -> None:
    lines = [line for block in blocks("optimisers.md", "sh") for line in commands(block)]
    assert len(lines) == 3
    for line in lines:
        outcome = paste(line.replace("64", "16").replace("--steps 200", "--steps 4") + " --device cpu", folder)
        assert outcome.code == 0, (line, outcome)
        assert ("Suggested: --learning-rate" in outcome.out) == ("--find-rate" in line)
    assert {path.name for path in (folder / "runs").iterdir()} == {"muon", "lion"}


def test_its_python_works(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    for block in blocks("optimisers.md", "python"):
        small = block.replace("64", "16").replace("steps=20", "steps=2, device='cpu'").replace("(lion)", "(lion, 20)")
        exec(compile(small, "optimisers.md", "exec"), {})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0
    assert {path.name for path in (folder / "runs").iterdir()} == {"python"}


def test_its_tables_name_all_there_is() -> None:
    names = re.findall(r"^\| `(\w+)`", GUIDE, flags=re.MULTILINE)
    assert names == [*OPTIMIZERS, *SCHEDULES]
    for name, choice in OPTIMIZERS.items():
        (row,) = re.findall(rf"^\| `{name}` .*$", GUIDE, flags=re.MULTILINE)
        assert float(row.rstrip("| ").rpartition("|")[2]) == pytest.approx(choice.share * 1e-3)
