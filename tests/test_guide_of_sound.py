"""What the guide to sound shows works: its commands that train and look, and its Python."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.cli.shell import commands, paste

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "sound.md").read_text(encoding="utf-8")
TINY = ["--device", "cpu", "--steps", "1", "--batch-rows", "2"]
SIZES = {
    "ast": "width=16,hidden=32,heads=2,layers=1",
    "wav2vec2": "width=16,hidden=32,heads=2,layers=1,position_kernel=8,position_groups=2,decision_width=8",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    time = np.arange(4000) / 8000
    for number in range(8):
        label = ("low", "high")[number % 2]
        (tmp_path / "clips" / label).mkdir(parents=True, exist_ok=True)
        wave = np.sin(2 * np.pi * (200 + 2000 * (number % 2)) * time + number)
        soundfile.write(tmp_path / "clips" / label / f"{number // 2}.wav", wave * 0.5, 8000)
        soundfile.write(tmp_path / "clip.wav", wave * 0.5, 8000)
    return tmp_path


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


def test_its_commands_work(folder: Path) -> None:
    lines = [line for block in blocks("sh") for line in commands(block) if line.startswith("qkv ")]
    trained = [line for line in lines if line.startswith("qkv train")]
    assert len(trained) == 3
    for line in trained:
        family = "wav2vec2" if "wav2vec2" in line else "ast"
        quick = re.sub(r"--minutes \d+", "", line)
        outcome = paste(quick, folder, *TINY, "--size", SIZES[family])
        assert outcome.code == 0, (line, outcome)
    used = [line for line in lines if line.startswith("qkv look runs/clips")]
    used.append("qkv run runs/clips clip.wav")
    assert len(used) == 2
    for line in used:
        outcome = paste(line, folder, "--device", "cpu")
        assert outcome.code == 0, (line, outcome)
    assert (folder / "look.png").exists()


def test_its_python_works(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    (block,) = blocks("python")
    quick = block.replace("steps=500", "steps=1, device='cpu'").replace("seconds=1.0", "seconds=0.3, sizes=tiny")
    names: dict[str, Any] = {"tiny": {"width": 16, "hidden": 32, "heads": 2, "layers": 1}}
    exec(compile(quick, "sound.md", "exec"), names)
    assert capsys.readouterr().out.splitlines()[-1] in ("low", "high")
    assert len(names["sounds"]) == 8
