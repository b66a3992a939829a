"""What the guide to long rows shows works, and it leaves out no kind of attention."""

import re
from pathlib import Path

import pytest

import qkv
from qkv.models.attention_choice import KINDS
from tests.api.corpus import VERSES
from tests.cli.shell import commands, paste

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "long-rows.md").read_text(encoding="utf-8")


def test_every_command_and_every_line_of_python_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus.txt").write_text("\n\n".join(VERSES))
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, flags=re.DOTALL):
        for line in commands(block):
            quick = ["--tokenizer", "bpe:300"] if " train " in line and "--model" not in line else []
            outcome = paste(line, tmp_path, *quick)
            assert outcome.code == 0, (line, outcome)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL):
        exec(compile(block, "long-rows.md", "exec"), names)
    for run in ("near", "recovered", "recovered-2"):
        assert str(qkv.load(f"runs/{run}").model.attention_choice) == "window:16+global:2"
    assert qkv.load("runs/gpt").model.attention_choice is None


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_attention_is_spelled_as_it_is_read(name: str) -> None:
    spelled = KINDS[name].form if name != "global" else "+global:COUNT"
    assert f"{spelled}`" in GUIDE
