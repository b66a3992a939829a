"""Kernels that add in the same order every time: on a GPU a run is then repeated and resumed bit for bit."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from qkv.errors import QkvError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without which products of matrices may add in another order
FIXED = ":4096:8"


def fix_workspace(wanted: bool) -> None:
    """To be called before the GPU is first used, which reads then how its products are to add."""
    if not wanted:
        return
    if torch.cuda.is_initialized() and WORKSPACE not in os.environ:
        raise QkvError(f"To repeat a run on a GPU set {WORKSPACE}={FIXED} before the GPU is first used.")
    os.environ.setdefault(WORKSPACE, FIXED)


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Inside, torch takes only kernels whose answers repeat, and says which operator has none."""
    if not wanted:
        yield
        return
    fix_workspace(wanted)
    before, tuned = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = tuned
