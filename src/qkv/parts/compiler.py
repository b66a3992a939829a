"""The C++ compiler of the system: where it is, what tells it from another, and one file compiled by it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from qkv.errors import QkvError

NAMES = ("c++", "g++", "clang++")
PATIENCE = 300  # seconds: where others use the cores a minute is usual


def system_compiler() -> list[str] | None:
    """How it is called, by `CXX` or by its usual names: a program, by its place, and words that come before others.

    A link is called as it is: one program may be many, and tell by its name which is meant.
    """
    named = os.environ.get("CXX", "").strip()
    try:
        said = [[named], shlex.split(named)] if named else [[name] for name in NAMES]
    except ValueError:  # a quotation mark without its other
        said = [[named]]
    found = ((_place(words[0]), words[1:]) for words in said)
    return next(([place, *more] for place, more in found if place is not None), None)


def identity(compiler: Sequence[str]) -> str:
    """The same for as long as nobody changes it: of each program in its words, whatever has its name on the path.

    So it tells also of a compiler that another program calls by that name.
    """
    names = dict.fromkeys(each for word in compiler for each in (word, *_on_path(os.path.basename(word))))
    found = []
    for name in names:
        if os.path.isabs(name) and os.path.isfile(name):
            status = os.stat(name)
            found.append((name, os.path.realpath(name), status.st_size, status.st_mtime_ns))
    return repr((list(compiler), found))


def compile_file(compiler: Sequence[str], options: Sequence[str], source: Path, made: Path) -> None:
    """Make one file from another; the reason why not is the error, in a few words."""
    said = made.with_suffix(".said")
    try:
        with said.open("wb") as stream:
            code = _ended([*compiler, *options, str(source), "-o", str(made)], stream.fileno(), made.parent)
    except OSError as error:
        raise QkvError(error.strerror or str(error)) from error
    if code != 0:
        lines = [line.strip() for line in said.read_text("utf-8", "replace").splitlines() if "error" in line]
        raise QkvError(lines[0][:300] if lines else f"it ended with {code}")
    if not made.is_file():
        raise QkvError("it made nothing")


def _ended(command: Sequence[str], output: int, folder: Path) -> int:
    """The exit code of a program that reads nothing of where we stand; it ends with all that it has started."""
    path = os.pathsep.join(_folders())
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=folder,
        env={**os.environ, "PATH": path},
        start_new_session=True,
    )
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise QkvError(f"it was stopped after {PATIENCE} seconds") from error
    finally:
        if process.returncode is None:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()


def _place(name: str) -> str | None:
    """As `shutil.which`, but never in the folder where we stand, which some systems look into first."""
    return next(_on_path(name), None) if name else None


def _on_path(name: str) -> Iterator[str]:
    """All programs of that name, in the order of the path; the one itself if the name is a place."""
    alone = os.path.isabs(name)
    if not alone and os.path.dirname(name):
        return
    for folder in [""] if alone else _folders():
        found = (shutil.which(os.path.join(folder, name + ending)) for ending in ("", ".exe"))
        yield from (each for each in found if each is not None)


def _folders() -> list[str]:
    return [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder)]
