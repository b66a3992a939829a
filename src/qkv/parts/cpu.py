"""A program in C++ for what a CPU does with few rows, compiled for the very processor it runs on.

`cpu_steps.cpp` is compiled on its first use by the compiler of the system (`CXX`, c++, g++ or clang++), in seconds,
and kept for the next time in the folder of `QKV_CACHE`, `XDG_CACHE_HOME` or `~/.cache`. Where there is no compiler,
torch's own operators do the same work more slowly; so they do where it fails, with a warning.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import warnings
from functools import cache
from pathlib import Path

from qkv.errors import QkvError, QkvWarning
from qkv.files import own_folder, write_whole
from qkv.parts.cpu_level import options

FILE = Path(__file__).with_name("cpu_steps.cpp")
COMPILERS = ("c++", "g++", "clang++")
OPTIONS = (
    "-std=c++17", "-O3", "-fopenmp", "-shared", "-fPIC", "-fno-math-errno", "-fno-exceptions",
)  # fmt: skip
PATIENCE = 120  # seconds for a compiler


@cache
def library() -> ctypes.CDLL | None:
    """The compiled program; None: it cannot be had here."""
    compiler = system_compiler()
    made = None if compiler is None else _compiled(compiler)
    try:
        return None if made is None else ctypes.CDLL(str(made))  # threads are of the OpenMP that torch has brought
    except OSError:
        return None  # the system lets nothing be run that lies there


def system_compiler() -> Path | None:
    named = os.environ.get("CXX")
    found = (shutil.which(name) for name in ((named,) if named else COMPILERS))
    return next((Path(name).resolve() for name in found if name is not None), None)


def _compiled(compiler: Path) -> Path | None:
    """Where the compiled program lies: from the last time, if nothing has changed of it, compiler and processor.

    None: this compiler cannot make it.
    """
    sources = sorted(FILE.parent.glob("cpu_*.h")) + [FILE]
    status = compiler.stat()
    known = [each.read_bytes() for each in sources]
    known += [repr((str(compiler), status.st_size, status.st_mtime, OPTIONS, options())).encode(), _processor()]
    named = hashlib.sha256(b"\0".join(known)).hexdigest()
    kept = own_folder("programs") / f"{FILE.stem}-{named}.so"
    if kept.exists():
        return kept
    import subprocess
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="qkv-"))
    made = folder / kept.name
    try:
        command = [compiler, *OPTIONS, *options(), FILE, "-o", made]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        write_whole(kept, made.read_bytes())
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        warnings.warn(
            f"{compiler} cannot compile {FILE.name}, so that models answer more slowly on this CPU ({_reason(error)}); "
            "another C++ compiler can be named in CXX.",
            QkvWarning,
            stacklevel=3,
        )
        return None
    except QkvError:
        return made  # nothing can be kept here: it serves this process
    shutil.rmtree(folder, ignore_errors=True)
    return kept


def _reason(error: Exception) -> str:
    """What the compiler said of its first error, or what kept it from running."""
    said = getattr(error, "stderr", None) or b""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if "error" in line]
    return lines[0] if lines else str(error)


def _processor() -> bytes:
    """What tells processors apart that need different code."""
    told = Path("/proc/cpuinfo")
    if not told.exists():
        return platform.processor().encode()
    lines = told.read_bytes().splitlines()
    return b"\n".join(sorted({line for line in lines if line.startswith((b"flags", b"Features", b"model name"))}))
