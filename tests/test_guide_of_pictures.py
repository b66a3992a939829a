"""What the guide to pictures shows works: its commands in order, then its Python."""

import re
from pathlib import Path

import pytest

from tests.cli.shell import commands, paste

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "pictures.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.mark.slow
def test_commands_and_python_work_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for line in (line for block in blocks("sh") for line in commands(block)):
        outcome = paste(line, tmp_path)
        assert outcome.code == 0, (line, outcome)
        said[" ".join(line.split()[1:3])] = outcome.out
    assert said["run runs/colours"].startswith("warm\t")
    assert said["run runs/larger"].startswith("cold\t")
    assert said["run runs/patches"].startswith("[[[")
    assert (tmp_path / "look.html").exists()
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    (block,) = blocks("python")
    exec(compile(block, "pictures.md", "exec"), {})
    assert capsys.readouterr().out.strip() in ("warm", "cold")
