"""What the cores of a CPU multiply at best, from registers alone: no product of matrices can be quicker."""

from __future__ import annotations

import ctypes
import tempfile
import time
from functools import cache
from pathlib import Path

import torch

from qkv.errors import QkvError
from qkv.parts import cpu
from qkv.parts.compiler import system_compiler
from qkv.parts.cpu_steps import KINDS

FILE = Path(__file__).with_suffix(".cpp")
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
TIMES, TURNS = 2_000_000, 5


def operations_a_second(precision: str, threads: int) -> float:
    """Products and sums of this precision."""
    found: list[float] = []
    _program()  # compiled before anything is timed
    for _ in range(TURNS):
        before = time.perf_counter()
        done = _program().qkv_registers(KINDS[TYPES[precision]], ctypes.c_long(TIMES), threads)
        found.append(done / (time.perf_counter() - before))
    return max(found)


@cache
def _program() -> ctypes.CDLL:
    compiler = system_compiler()
    if compiler is None:
        raise QkvError("The limit of a CPU is measured by a program in C++: install a compiler, or name one in CXX.")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "registers.so"
        cpu.compile_program(compiler, FILE, made, [f"-I{cpu.FILE.parent}"])
        program = ctypes.CDLL(str(made))
    program.qkv_registers.restype = ctypes.c_long
    return program
