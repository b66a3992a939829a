"""Rewrites one pickle of weights as safetensors, in a process of its own.

A pickle is a program. torch's restricted loader runs only the few steps that rebuild tensors, and this process, which
may take no more memory and time than such a file needs, is all that a flaw in the loader could harm. The only file that
opens a pickle; `pickles.py` starts it.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import WRITE_ERRORS, write_tensors

REFUSED = 3  # the exit code after one sentence on standard output
MEMORY_FACTOR, MEMORY_MORE = 6, 2**30  # bytes for each byte of the file (tied tensors are told apart), and beside them


def limit_memory(file_size: int) -> None:
    """From here on this process may take what the file needs. Systems without such limits have only the time limit."""
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        most = used + MEMORY_FACTOR * file_size + MEMORY_MORE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, OSError, ValueError):
        return


def read_restricted(file: Path) -> dict[str, Tensor]:
    """The tensors of a pickle by name; anything else in it is refused."""
    with file.open("rb") as stream:
        zipped = stream.read(2) == b"PK"  # older files are one stream, which cannot be mapped into memory
    try:
        held: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        does = f"it asks for {asked[1]}" if asked else "it holds more than tensors"
        raise QkvError(f"{file} is refused: {does}, which could run a program; nothing of it was run.") from error
    except (MemoryError, RuntimeError, EOFError, ValueError, KeyError, IndexError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise QkvError(f"{file} is no whole file of weights ({reason}).") from error
    if not isinstance(held, dict) or not held or not all(isinstance(each, Tensor) for each in held.values()):
        raise QkvError(f"{file} is no file of weights: it should hold tensors by their names and nothing else.")
    return {str(name): tensor.detach() for name, tensor in held.items()}


def main(old: str, new: str) -> int:
    file = Path(old)
    limit_memory(file.stat().st_size)
    try:
        write_tensors(Path(new), read_restricted(file))
    except QkvError as error:
        print(error)
        return REFUSED
    except (MemoryError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        print(f"{file} is refused: its tensors take far more memory than the file itself ({reason}).")
        return REFUSED
    except WRITE_ERRORS as error:
        print(f"Cannot write what {file} holds: {error}; make room.")
        return REFUSED
    return 0
