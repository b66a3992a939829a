"""The program for few rows: compiled once, not again where a compiler failed, and said where it cannot be had."""

import ctypes
import os
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from qkv.errors import QkvWarning
from qkv.parts import compiler, cpu
from tests.parts.test_compiler import program


class Pretended:
    """A compiler that notes its calls in `calls`; what it makes is not loaded."""

    def __init__(self, folder: Path) -> None:
        self.file, self._notes = folder / "compiler", folder / "notes"
        self.does('echo made > "$made"')

    def does(self, what: str) -> None:
        program(self.file, f"""echo "$*" >> '{self._notes}'; for made; do :; done; {what}""")

    @property
    def calls(self) -> list[str]:
        return self._notes.read_text().splitlines() if self._notes.exists() else []


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    found = Pretended(tmp_path)
    (tmp_path / "passing").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "passing"))
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(found.file))
    monkeypatch.setattr(cpu, "_loaded", lambda file: file.read_text())
    return found


def library() -> object:
    """As in a process that asks for it for the first time."""
    return cpu.library.__wrapped__()


def test_it_is_compiled_once_and_leaves_nothing(pretended: Pretended, tmp_path: Path) -> None:
    assert library() == library() == "made\n"
    assert len(pretended.calls) == 1
    assert list((tmp_path / "passing").iterdir()) == []
    assert len(list((tmp_path / "cache" / "qkv" / "programs").iterdir())) == 1


@pytest.mark.parametrize("place", ["cache", "passing"])
def test_a_planted_program_is_not_loaded(place: str, pretended: Pretended, tmp_path: Path) -> None:
    """Where everybody may put files, in the very place of the program and with its name."""
    library()
    folder = tmp_path / "cache" / "qkv" / "programs"
    (file,) = folder.iterdir()
    file.write_bytes(b"planted")
    file.chmod(0o666)
    folder.chmod(0o777)
    if place == "passing":
        (tmp_path / "cache").rename(tmp_path / "gone")
        planted = tmp_path / "passing" / f"qkv-{os.geteuid()}" / "programs"
        planted.parent.mkdir()
        (tmp_path / "gone" / "qkv" / "programs").rename(planted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QkvWarning)
        assert library() == "made\n"
    assert len(pretended.calls) == 2


def test_where_the_cache_cannot_be_written_the_next_process_finds_it(pretended: Pretended, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.warns(QkvWarning, match="kept in .*passing") as said:
        assert library() == "made\n"
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert library() == "made\n"
    assert len(pretended.calls) == 1
    assert [each.name for each in (tmp_path / "passing").iterdir()] == [f"qkv-{os.geteuid()}"]


def test_where_nothing_can_be_kept_nothing_is_left(pretended: Pretended, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    (tmp_path / "passing").chmod(0o777)
    for _ in range(2):
        with pytest.warns(QkvWarning, match="kept nowhere"):
            assert library() == "made\n"
    assert list((tmp_path / "passing").iterdir()) == []


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("exit 1", r"compiler cannot compile cpu_steps\.cpp: it ended with 1; another"),
        ("echo 'x.cpp:1: error: no OpenMP' >&2; exit 1", r"cpu_steps\.cpp: x\.cpp:1: error: no OpenMP; another"),
        ("/bin/sleep 1000", r"cpu_steps\.cpp: it was stopped after 0\.2 seconds; another"),
    ],
)
def test_a_compiler_that_fails_is_told_of_and_not_asked_again(
    does: str, told: str, pretended: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "PATIENCE", 0.2 if "sleep" in does else 100)
    pretended.does(does)
    for _ in range(3):
        with pytest.warns(QkvWarning, match=told) as said:
            assert library() is None
        assert len(said) == 1
        assert len(pretended.calls) == 1
    assert "it is tried again in a day, or once " in str(said[0].message)
    assert list((tmp_path / "passing").iterdir()) == []
    (failed,) = (tmp_path / "cache" / "qkv" / "programs").iterdir()
    assert str(failed) in str(said[0].message)

    yesterday = failed.stat().st_mtime - 25 * 60 * 60
    os.utime(failed, (yesterday, yesterday))
    with pytest.warns(QkvWarning, match=told):
        assert library() is None
    assert len(pretended.calls) == 2
    pretended.does('echo mended > "$made"')
    assert library() == "mended\n"


@pytest.mark.parametrize(("named", "told"), [("no-such", "'no-such', which CXX names, is no"), ("", "none of c")])
def test_without_a_compiler_it_is_said(named: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", named)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(QkvWarning, match=f"more slowly on this CPU, by torch alone: .*{told}") as said:
        assert library() is None
    assert len(said) == 1


def test_a_program_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    (tmp_path / "sum.so").write_bytes(b"no program")
    with pytest.warns(QkvWarning, match=r"by torch alone: .*sum\.so.*name another folder in QKV_CACHE"):
        assert cpu._loaded(tmp_path / "sum.so") is None


def test_it_takes_the_threads_that_torch_has_brought(pretended: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's own words first where its OpenMP is there already: a second one would end the process."""
    monkeypatch.setattr(cpu, "_has_llvm", lambda: True)
    pretended.does('case "$*" in *"-Xclang -fopenmp"*) echo llvm > "$made";; *) exit 1;; esac')
    assert library() == "llvm\n"
    assert len(pretended.calls) == 1
    pretended.does('case "$*" in *-Xclang*) exit 1;; *" -fopenmp"*) echo gnu > "$made";; *) exit 1;; esac')
    assert library() == "gnu\n"
    assert len(pretended.calls) == 3
    monkeypatch.setattr(cpu, "_has_llvm", lambda: False)
    assert library() == "gnu\n"
    assert len(pretended.calls) == 4


@pytest.mark.parametrize(("brought", "asked"), [(False, "0"), (True, None)])
def test_threads_of_a_second_openmp_sleep_between_calls(
    brought: bool, asked: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMP_BLOCKTIME", "")
    monkeypatch.delenv("KMP_BLOCKTIME")
    monkeypatch.setattr(cpu, "_has_llvm", lambda: brought)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(kmp_set_blocktime=None))
    cpu._loaded(tmp_path)
    assert os.environ.get("KMP_BLOCKTIME") == asked


def test_torch_has_brought_threads_of_one_kind() -> None:
    assert "OpenMP" not in torch.__config__.parallel_info() or hasattr(ctypes.CDLL(None), "omp_get_thread_num")
