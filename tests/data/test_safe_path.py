"""What is started inside looks for no module in the current folder; what was there before comes back."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from qkv.data.safe_path import NAME, for_good, safe_path
from qkv.errors import QkvError


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "")
    monkeypatch.delenv(NAME)


def test_python_looks_elsewhere_inside(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("print('a trap')")
    command = [sys.executable, "-c", "import json"]
    said = [subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout]
    with safe_path():
        said.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert said == ["a trap\n", ""]


@pytest.mark.parametrize("before", [None, "", "1"])
def test_what_stood_there_comes_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is not None:
        monkeypatch.setenv(NAME, before)
    with safe_path():
        assert os.environ[NAME] == "1"
    assert os.environ.get(NAME) == before


def test_blocks_of_several_threads_may_overlap() -> None:
    first, second = safe_path(), safe_path()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ[NAME] == "1"
    second.__exit__(None, None, None)
    assert NAME not in os.environ


def test_a_command_keeps_it() -> None:
    for_good()
    with safe_path():
        pass
    assert os.environ[NAME] == "1"


def test_a_python_whose_processes_would_not_heed_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for ignores, safe in ((1, False), (1, True), (0, False)):
        monkeypatch.setattr(sys, "flags", SimpleNamespace(ignore_environment=ignores, safe_path=safe))
        if ignores and not safe:
            with pytest.raises(QkvError, match="runs with -E"), safe_path():
                pass
        else:
            with safe_path():
                pass
