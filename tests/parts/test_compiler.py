"""Which compiler is taken, called as it is named; one that hangs ends with all that it has started."""

import os
import signal
import time
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.parts import compiler
from qkv.parts.compiler import compile_file, identity, system_compiler


def program(file: Path, does: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    file.chmod(0o755)
    return file


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_the_usual_names_are_looked_for_in_their_order(path: Path) -> None:
    assert system_compiler() is None
    program(path / "clang++", "")
    assert system_compiler() == [str(path / "clang++")]
    program(path / "g++", "")
    assert system_compiler() == [str(path / "g++")]


@pytest.mark.parametrize("named", ["", " "])
def test_a_name_that_says_nothing_names_nothing(named: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path / "g++", "")
    monkeypatch.setenv("CXX", named)
    assert system_compiler() == [str(path / "g++")]


def test_words_may_follow_a_name(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path / "ccache", "")
    with_spaces = program(tmp_path / "my programs" / "g++", "")
    for named, words in (
        ("ccache g++ -m64", [str(path / "ccache"), "g++", "-m64"]),
        (str(with_spaces), [str(with_spaces)]),
        (f"'{with_spaces}' -m64", [str(with_spaces), "-m64"]),
        ("no-such-compiler", None),
        ("ccache 'g++", None),
    ):
        monkeypatch.setenv("CXX", named)
        assert system_compiler() == words


def test_a_link_is_called_by_its_own_name(path: Path, tmp_path: Path) -> None:
    """As those that ccache makes: what they lead to is no compiler by itself."""
    program(path / "ccache", 'test "${0##*/}" = g++ || exit 1; for made; do :; done; echo > "$made"')
    (path / "g++").symlink_to("ccache")
    found = system_compiler()
    assert found == [str(path / "g++")]
    compile_file(found, (), tmp_path / "sum.cpp", tmp_path / "sum.so")
    assert (tmp_path / "sum.so").exists()


def test_no_compiler_is_taken_from_where_we_stand(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    for name in ("c++", "g++", "clang++", "c++.exe"):
        program(here / name, "")
    monkeypatch.chdir(here)
    for places in (f".{os.pathsep}{path}", f"{os.pathsep}{path}", f"{path}{os.pathsep}."):
        monkeypatch.setenv("PATH", places)
        assert system_compiler() is None
    for named in ("./g++", "../here/g++"):
        monkeypatch.setenv("CXX", named)
        assert system_compiler() is None


def test_another_compiler_behind_the_same_words_is_another(path: Path, tmp_path: Path) -> None:
    words = [str(program(path / "ccache", "")), "g++"]
    program(path / "g++", "exit 0")
    first = identity(words)
    assert identity(words) == first
    program(path / "g++", "exit 0 # newer")
    assert identity(words) != first
    assert identity([*words, "-m64"]) != identity(words)


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("exit 3", "it ended with 3"),
        ("echo 'warning: old'; echo '1: error: no OpenMP'; echo '2: error: b'; exit 1", "^1: error: no OpenMP$"),
        ("echo x.cpp:1: error: no OpenMP >&2; exit 1", "error: no OpenMP"),
        ("exit 0", "it made nothing"),
    ],
)
def test_what_keeps_it_from_compiling_is_told(does: str, told: str, path: Path, tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=told):
        compile_file([str(program(path / "g++", does))], ("-O3",), tmp_path / "sum.cpp", tmp_path / "sum.so")


def test_a_program_that_cannot_be_run_is_told(path: Path, tmp_path: Path) -> None:
    (path / "g++").write_bytes(b"\x7fELF of another processor")
    (path / "g++").chmod(0o755)
    with pytest.raises(QkvError, match=r"[Ee]xec format error"):
        compile_file([str(path / "g++")], (), tmp_path / "sum.cpp", tmp_path / "sum.so")


def test_it_stands_in_the_folder_of_what_it_makes(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path)
    monkeypatch.setenv("PATH", f".{os.pathsep}{path}")
    program(path / "g++", 'for made; do :; done; echo "$PWD $PATH" > "$made"')
    (tmp_path / "made").mkdir()
    compile_file([str(path / "g++")], (), tmp_path / "sum.cpp", tmp_path / "made" / "sum.so")
    assert (tmp_path / "made" / "sum.so").read_text() == f"{tmp_path / 'made'} {path}\n"


def is_running(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{number}/stat")
    return not state.exists() or state.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def test_one_that_hangs_is_ended_with_its_own_processes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "PATIENCE", 0.5)
    numbers = tmp_path / "numbers"
    hangs = program(path / "g++", f"/bin/sleep 1000 & echo $$ $! > '{numbers}'; wait")
    with pytest.raises(QkvError, match=r"it was stopped after 0\.5 seconds"):
        compile_file([str(hangs)], (), tmp_path / "sum.cpp", tmp_path / "sum.so")
    started = [int(number) for number in numbers.read_text().split()]
    assert len(started) == 2
    deadline = time.monotonic() + 20
    while any(map(is_running, started)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, started))


def test_ctrl_c_ends_it_too(path: Path, tmp_path: Path) -> None:
    """It stands apart from the terminal, which tells us alone."""
    numbers = tmp_path / "numbers"
    tells = f"/bin/sleep 1000 & echo $$ $! > '{numbers}'; /bin/sleep 0.5; kill -INT {os.getpid()}; wait"
    with pytest.raises(KeyboardInterrupt):
        compile_file([str(program(path / "g++", tells))], (), tmp_path / "sum.cpp", tmp_path / "sum.so")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    deadline = time.monotonic() + 20
    while any(is_running(int(number)) for number in numbers.read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(is_running(int(number)) for number in numbers.read_text().split())
