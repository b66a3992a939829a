"""Commands that stand in a stranger's folder run nothing of it: no module named like a library, no program of git.

As processes of their own, begun as an installed `qkv` is.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.data.tokenizer import TextTokenizer
from qkv.files import checksum
from qkv.generate.language import TextWriter
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.parts import cpu
from qkv.parts.compiler import compile_file, system_compiler
from tests.data.corpus_files import TEXTS
from tests.train.test_commit import git
from tests.weights.folders import write_gpt2
from tests.weights.test_convert import as_pickle

MODULES = (
    "collections", "concurrent", "contextlib", "ctypes", "dataclasses", "functools", "hashlib", "importlib", "json",
    "multiprocessing", "numpy", "os", "pathlib", "pickle", "qkv", "re", "rich", "runpy", "safetensors", "site",
    "sitecustomize", "socket", "subprocess", "sympy", "tempfile", "threading", "tokenizers", "torch", "triton", "typer",
    "types", "typing", "typing_extensions", "usercustomize", "warnings",
)  # fmt: skip
INSTALLED = """import sys
from qkv.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""  # as an installer writes it


class Stranger:
    """A folder full of traps; what one of them has done is in `ran`."""

    def __init__(self, folder: Path, installed: Path) -> None:
        self.folder, self.marks, self._command = folder, installed / "marks", installed / "qkv"
        self.marks.mkdir(parents=True)
        self._command.write_text(INSTALLED)
        folder.mkdir()
        for name in MODULES:
            mark = f"open({str(self.marks / name)!r}, 'w').close()\n"
            (folder / f"{name}.py").write_text(f"{mark}raise SystemExit('a trap')\n")
        for name in ("c++", "g++", "clang++", "git", "gcc", "cc", "ccache", "ld"):
            self._program(folder / name)
        if shutil.which("git"):
            git(folder, "init")
            self._program(folder / "monitor")
            for setting in ("core.fsmonitor", "diff.external", "core.sshCommand", "filter.trap.clean"):
                git(folder, "config", setting, str(folder / "monitor"))
            git(folder, "config", "core.hooksPath", str(folder))
            (folder / ".gitattributes").write_text("* filter=trap\n")

    def _program(self, file: Path) -> None:
        file.write_text(f"#!/bin/sh\ntouch '{self.marks / file.name}'\n", encoding="utf-8")
        file.chmod(0o755)

    @property
    def ran(self) -> list[str]:
        return sorted(mark.name for mark in self.marks.iterdir())

    def python(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_TOKEN": "secret"}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)

    def qkv(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        done = self.python(self._command, *arguments)
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path / "stranger", tmp_path / "installed")


def test_the_traps_would_run(stranger: Stranger) -> None:
    """So that what follows could fail: Python itself looks into the current folder first, and git asks its settings."""
    stranger.python("-c", "import torch")
    stranger.python("-c", "from multiprocessing.spawn import spawn_main")
    assert stranger.ran == ["multiprocessing", "torch"]
    if shutil.which("git"):
        subprocess.run(["git", "status"], cwd=stranger.folder, capture_output=True, check=False)
        assert "monitor" in stranger.ran


def test_old_weights_are_converted(stranger: Stranger) -> None:
    as_pickle(write_gpt2(stranger.folder / "old"))
    stranger.qkv("convert", "old", "new")
    assert (stranger.folder / "new" / "model.safetensors").exists()
    assert stranger.ran == []


def test_a_model_is_trained_beside_other_processes_and_run(stranger: Stranger) -> None:
    (stranger.folder / "verses.txt").write_text("\n\n".join(TEXTS))
    TextTokenizer.train("bpe", TEXTS, vocabulary=300).save(stranger.folder / "tokenizer.json")
    size = "width=8,heads=2,layers=1,positions=16,hidden=16"
    read = ("--data", "verses.txt", "--blank-lines", "--stream", "--tokens", "tokens", "--workers", "2")
    model = ("--tokenizer", "tokenizer.json", "--length", "16", "--size", size, "--device", "cpu", "--steps", "2")
    stranger.qkv("train", "lm", *read, *model, "--out", "run")
    assert stranger.ran == []
    stranger.qkv("run", "run", "a", "--max-tokens", "3", "--device", "cpu")
    assert stranger.ran == []


def test_a_planted_program_is_not_run(stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cache that all may write to, by the very name that is looked for and with that content."""
    compiler = system_compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler to make a trap")
    mark, source, trap = stranger.marks / "planted", tmp_path / "trap.cpp", tmp_path / "trap.so"
    source.write_text(f'#include <cstdio>\nstatic FILE *ran = std::fopen("{mark}", "w");\n')
    compile_file(compiler, ("-shared", "-fPIC"), source, trap)
    stranger.python("-P", "-c", f"import ctypes; ctypes.CDLL({str(trap)!r})")
    assert stranger.ran == ["planted"], "so that it could"
    mark.unlink()

    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "shared"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "passing"))
    monkeypatch.setenv("CXX", str(tmp_path / "fails"))  # no need to wait for the program itself
    (tmp_path / "passing").mkdir()
    (tmp_path / "fails").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "fails").chmod(0o755)
    programs = tmp_path / "shared" / "qkv" / "programs"
    programs.mkdir(parents=True)
    planted = programs / f"{cpu._name([str(tmp_path / 'fails')])}.{checksum(trap)}.so"
    shutil.copy(trap, planted)
    planted.chmod(0o666)
    programs.chmod(0o777)
    # Large enough to ask for it.
    sizes = GPT2Sizes(vocabulary=300, positions=16, width=64, hidden=4096, heads=2, layers=1)
    cutter = TextTokenizer.train("bpe", TEXTS, vocabulary=300)
    TextWriter(build("gpt2", sizes, HeadChoice("language")), cutter).save(stranger.folder / "writer")
    told = stranger.qkv("run", "writer", "In", "--max-tokens", "3", "--device", "cpu").stderr
    assert "fails cannot compile cpu_steps.cpp: it ended with 1" in told, "it was asked for"
    assert stranger.ran == []


@pytest.mark.slow  # torch's compiler takes half a minute
def test_a_model_is_compiled(stranger: Stranger) -> None:
    (stranger.folder / "verses.txt").write_text("\n\n".join(TEXTS))
    size = "width=8,heads=2,layers=1,positions=16,hidden=16"
    model = ("--tokenizer", "characters", "--length", "16", "--size", size, "--device", "cpu", "--steps", "2")
    stranger.qkv("train", "lm", "--data", "verses.txt", "--blank-lines", *model, "--compile", "--out", "run")
    assert stranger.ran == []
