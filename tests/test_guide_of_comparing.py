"""What the guide to comparing shows works: its commands, made small, and its Python."""

from pathlib import Path

import pytest

from qkv.api.comparison import Comparison
from tests.api.corpus import DOCUMENTS
from tests.cli.shell import commands, paste
from tests.guides import blocks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_its_commands_work(folder: Path) -> None:
    lines = [line for block in blocks("compare.md", "sh") for line in commands(block)]
    assert len(lines) == 2
    for line in lines:
        small = line.replace("128", "16").replace("512", "32").replace("352", "16").replace("--seeds 2", "")
        outcome = paste(
            small, folder, "--budget", "2steps", "--hold-out", "0.3", "--batch-rows", "2", "--device", "cpu"
        )
        assert outcome.code == 0, (small, outcome)
    names = [outcome.name for outcome in Comparison.load(folder / "runs" / "shapes").outcomes]
    assert names == ["dense", "deep", "bold", "llama"]
    assert (folder / "runs" / "compared" / "page.html").exists()


def test_its_python_works(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    for block in blocks("compare.md", "python"):
        small = block.replace("steps=20", "steps=2, device='cpu'").replace("evaluations=4", "evaluations=1")
        exec(compile(small, "compare.md", "exec"), {})
    assert "'window':" in capsys.readouterr().out
