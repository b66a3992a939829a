"""What the cores of a CPU multiply at best, from registers alone: no product of matrices can be quicker."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import torch

from qkv.parts import cpu
from qkv.parts.cpu_steps import KINDS

FILE = Path(__file__).with_suffix(".cpp")
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
TIMES, TURNS = 2_000_000, 5


def operations_a_second(precision: str, threads: int) -> float | None:
    """Products and sums of this precision; None: there is no compiler to ask with."""
    program = _program()
    if program is None:
        return None
    found = []
    for _ in range(TURNS):
        before = time.perf_counter()
        done = program.qkv_registers(KINDS[TYPES[precision]], ctypes.c_long(TIMES), threads)
        found.append(done / (time.perf_counter() - before))
    return max(found)


@cache
def _program() -> ctypes.CDLL | None:
    compiler = cpu._compiler()
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "registers.so"
        subprocess.run([compiler, *cpu.OPTIONS, f"-I{cpu.FILE.parent}", FILE, "-o", made], check=True)
        program = ctypes.CDLL(str(made))
    program.qkv_registers.restype = ctypes.c_long
    return program
