"""The process that opens a pickle has this one's libraries, and nothing of where it stands nor of what is secret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qkv
from qkv.errors import QkvError
from qkv.weights import pickles


def test_it_finds_what_this_process_has_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the current folder and relative ones come first here, and no variable says where anything is."""
    (tmp_path / "src").mkdir()
    for folder in (tmp_path, tmp_path / "src"):
        for name in ("qkv", "torch", "json"):
            (folder / f"{name}.py").write_text("raise SystemExit('a trap')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "src", str(tmp_path), *sys.path])
    command = pickles._alone("import json, qkv; print(qkv.__file__)")
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, qkv.__file__, "")


def test_a_checkout_is_found_by_the_folder_it_lies_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not that is where we stand, or told by anything but the file itself."""
    source = str(Path(pickles.__file__).parents[2])
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != source])
    monkeypatch.chdir(source)
    command = pickles._alone("import qkv.errors; print(qkv.errors.__file__)")
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(source)


def test_it_is_told_no_secret_and_stands_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    def run(command: list[str], **how: object) -> "subprocess.CompletedProcess[str]":
        given.update(how, files=os.listdir(str(how["cwd"])), command=command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    Path("old.bin").write_bytes(b"old")
    pickles.rewrite(Path("old.bin"), tmp_path / "new.safetensors")
    assert set(given["env"]) <= {*pickles.HANDED_ON, "OMP_NUM_THREADS"}
    assert given["env"]["LD_LIBRARY_PATH"] == str(tmp_path)
    assert given["files"] == []
    assert not Path(given["cwd"]).exists()
    assert given["command"][-2:] == [str(tmp_path / "old.bin"), str(tmp_path / "new.safetensors")]


def test_a_file_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.bin").write_bytes(b"no pickle")
    with pytest.raises(QkvError, match=r"^old\.bin is "):
        pickles.rewrite(Path("old.bin"), tmp_path / "new.safetensors")
