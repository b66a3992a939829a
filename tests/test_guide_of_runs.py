"""What the guide to runs shows works: its commands, made small, its file of options and its Python."""

from pathlib import Path

import pytest
import torch

from qkv.files import read_tensors
from tests.api.corpus import DOCUMENTS
from tests.cli.shell import commands, paste
from tests.guides import blocks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    return tmp_path


def test_its_commands_work(folder: Path) -> None:
    (options,) = blocks("runs.md", "toml")
    (folder / "lm.toml").write_text(options.replace("64", "16"))
    lines = [line for block in blocks("runs.md", "sh") for line in commands(block)]
    assert len(lines) == 8
    for line in lines:
        small = (
            line.replace("64", "16").replace("--steps 200", "--steps 8 --device cpu").replace("--steps 50", "--steps 2")
        )
        outcome = paste(small.replace("steps>=100", "steps>=1"), folder)
        assert outcome.code == 0, (small, outcome)
        if small == "qkv runs runs/calm runs/bold":
            assert "optimizer.groups.0.initial_lr" in outcome.out
    assert (folder / "runs" / "page" / "page.html").exists()
    calm, again = (read_tensors(folder / "runs" / name / "model.safetensors") for name in ("calm", "calm-again"))
    assert all(torch.equal(calm[name], again[name]) for name in calm)


def test_its_python_works(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    for block in blocks("runs.md", "python"):
        exec(compile(block.replace("steps=20", "steps=2, device='cpu'"), "runs.md", "exec"), {})
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "begins: gpt2"
    assert told[-2:] == ["2 final", "is over"]
