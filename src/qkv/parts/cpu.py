"""A program in C++ for what a CPU does with few rows, compiled for the very processor it runs on.

`cpu_steps.cpp` is compiled on its first use by the compiler of the system (`CXX`, c++, g++ or clang++), in seconds,
and kept for the next time in the folder of `QKV_CACHE`, `XDG_CACHE_HOME` or `~/.cache`. Where there is no compiler, or
it fails, torch's own operators do the same work more slowly, and a sentence says so.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from qkv.errors import QkvError, QkvWarning
from qkv.parts import program_cache
from qkv.parts.compiler import NAMES, compile_file, identity, system_compiler
from qkv.parts.cpu_level import options as of_level

FILE = Path(__file__).with_name("cpu_steps.cpp")
OPTIONS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-fno-math-errno", "-fno-exceptions")
OPENMP = ("-fopenmp",)
# Clang's words for threads of an OpenMP that is there already, with none of its own; Apple's linker must be told.
OF_LLVM = ("-Xclang", "-fopenmp", *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()))
RETRIED = 24 * 60 * 60  # seconds after which a compiler that failed is tried again: a disk may have been full


@cache
def library() -> ctypes.CDLL | None:
    """The compiled program; None: it cannot be had here, which is said."""
    compiler = system_compiler()
    if compiler is None:
        named = os.environ.get("CXX")
        none = f"{named!r}, which CXX names, is no program" if named else f"there is none of {', '.join(NAMES)}"
        _say(f"{none}; install a C++ compiler or name one in CXX")
        return None
    name = _name(compiler)
    if (program := program_cache.kept(name, ".so")) is not None:
        return _loaded(program)
    failed = program_cache.kept(name, ".failed")
    if failed is not None and time.time() - failed.stat().st_mtime < RETRIED:
        _say(f"{failed.read_text('utf-8')} (it is tried again in a day, or once {failed} is deleted)")
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="qkv-", ignore_cleanup_errors=True) as folder:
            made = Path(folder) / f"{FILE.stem}.so"
            compile_program(compiler, FILE, made)
            return _loaded(program_cache.keep(name, ".so", made.read_bytes()) or made)
    except (OSError, QkvError) as error:
        why = f"{shlex.join(compiler)} cannot compile {FILE.name}: {error}; another compiler can be named in CXX"
        if isinstance(error, QkvError):  # it was the compiler
            program_cache.keep(name, ".failed", why.encode(), aloud=False)
        _say(why)
        return None


def compile_program(compiler: Sequence[str], source: Path, made: Path, options: Sequence[str] = ()) -> None:
    """By the first words for OpenMP that the compiler knows."""
    *others, last = _ways()
    for way in others:
        with suppress(QkvError):
            compile_file(compiler, (*OPTIONS, *of_level(), *way, *options), source, made)
            return
    compile_file(compiler, (*OPTIONS, *of_level(), *last, *options), source, made)


def _ways() -> list[tuple[str, ...]]:
    return [OF_LLVM, OPENMP] if _has_llvm() else [OPENMP]


def _name(compiler: Sequence[str]) -> str:
    """What the program is kept by: another one for other sources, compilers and processors."""
    known = [each.read_bytes() for each in (*sorted(FILE.parent.glob("cpu_*.h")), FILE)]
    known += [repr((identity(compiler), OPTIONS, of_level(), _ways())).encode(), _processor()]
    digest = hashlib.sha256(b"\0".join(known)).hexdigest()
    return f"{FILE.stem}-{digest}"


def _loaded(program: Path) -> ctypes.CDLL | None:
    """It takes the OpenMP that torch has brought, whose threads are there already.

    A program by clang beside GNU's cannot, and brings LLVM's. Its threads shall then sleep between two calls: where
    they spin, those of torch cannot work.
    """
    alone = _has_llvm()
    try:
        found = ctypes.CDLL(str(program))
    except OSError as error:  # the system lets nothing be run that lies there
        _say(f"{error}; name another folder in QKV_CACHE")
        return None
    if not alone and hasattr(found, "kmp_set_blocktime"):
        os.environ.setdefault("KMP_BLOCKTIME", "0")  # it reads this at its first call
    return found


def _has_llvm() -> bool:
    """Whether torch has brought LLVM's OpenMP, or Intel's, which is the same; a second one would end the process."""
    return os.name == "posix" and hasattr(ctypes.CDLL(None), "__kmpc_fork_call")


def _say(why: str) -> None:
    warnings.warn(f"Models answer more slowly on this CPU, by torch alone: {why}.", QkvWarning, stacklevel=3)


def _processor() -> bytes:
    """What tells processors apart that need different code."""
    told = Path("/proc/cpuinfo")
    if not told.exists():
        return platform.processor().encode()
    lines = told.read_bytes().splitlines()
    return b"\n".join(sorted({line for line in lines if line.startswith((b"flags", b"Features", b"model name"))}))
