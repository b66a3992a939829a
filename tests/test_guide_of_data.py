"""What the guide to large corpora shows works: its commands, made small, and its Python."""

from pathlib import Path

import pytest

from qkv.data.token_folder import open_tokens
from tests.api.corpus import DOCUMENTS
from tests.cli.shell import commands, paste
from tests.guides import blocks


def test_its_commands_and_its_python_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"{number}. {text}" for number in range(4) for text in DOCUMENTS]
    (tmp_path / "book.txt").write_text("\n\n".join(texts), encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = [line for block in blocks("data-at-scale.md", "sh") for line in commands(block)]
    assert len(lines) == 6
    for line in lines:
        small = (
            line.replace("64", "16")
            .replace("--steps 200", "--steps 4 --hold-out 0.3 --device cpu")
            .replace("--workers 2", "")
        )
        outcome = paste(small, tmp_path)
        assert outcome.code == 0, (small, outcome)
    assert (tmp_path / "runs" / "book" / "model.safetensors").exists()
    assert len(open_tokens(tmp_path / "tokens" / "corpus")) == 2
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("data-at-scale.md", "python")
    exec(compile(block, "data-at-scale.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"book.txt {len(texts)} {texts[0][:10]}")
    assert second.startswith("more.txt")
