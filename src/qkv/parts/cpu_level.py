"""What a processor is taken for: for what it is, or in `QKV_CPU_LEVEL` for less, to try what others have."""

from __future__ import annotations

import os

import torch

from qkv.errors import QkvError, nearest_or_all

# As compilers call what a program may use, beside the least that such a processor has.
LEVELS = {"": ("-march=native",), "avx512": ("-march=x86-64-v4",), "avx2": ("-march=x86-64-v3",), "plain": ()}


def level() -> str:
    asked = os.environ.get("QKV_CPU_LEVEL", "")
    if asked not in LEVELS:
        raise QkvError(f"QKV_CPU_LEVEL is {asked!r}: {nearest_or_all(asked, [each for each in LEVELS if each])}")
    return asked


def options() -> tuple[str, ...]:
    """What a compiler is told of the processor."""
    return LEVELS[level()]


def has_vnni() -> bool:
    """Whether torch's kernels add up products of bytes in 32 bits."""
    return level() == "" and torch.cpu._is_vnni_supported()
