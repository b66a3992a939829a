"""What the guide to speech shows works: its commands in order, then its Python."""

import re
from pathlib import Path

import pytest

from tests.cli.shell import commands, paste

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "speech.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.mark.slow
def test_commands_and_python_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = blocks("sh")
    for line in commands(block):
        outcome = paste(line, tmp_path)
        assert outcome.code == 0, (line, outcome)
    assert (tmp_path / "runs/for-others/vocab.json").exists()
    assert (tmp_path / "runs/for-others/preprocessor_config.json").exists()
    monkeypatch.chdir(tmp_path)
    (script,) = blocks("python")
    exec(compile(script, "speech.md", "exec"), {})
    assert (tmp_path / "runs/python-written/model.safetensors").exists()
