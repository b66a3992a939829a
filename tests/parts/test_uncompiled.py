"""A function that is left alone by the compiler, and does not load it."""

import subprocess
import sys

import torch
from torch import Tensor

from qkv.parts.uncompiled import uncompiled

seen: list[bool] = []


@uncompiled
def positive(x: Tensor) -> Tensor:
    """How many numbers it takes is known to the data alone."""
    seen.append(torch.compiler.is_compiling())
    return x[x > 0]


def test_it_runs_as_it_is_inside_compiled_code() -> None:
    torch._dynamo.reset()

    def around(x: Tensor) -> Tensor:
        return positive(2 * x).sum() + 1

    seen.clear()
    compiled = torch.compile(around, backend="eager")
    for x in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-1.0, 5.0, -1.0])):
        assert compiled(x) == around(x)
    assert seen == [False] * 4


def test_it_loads_no_compiler() -> None:
    code = (
        "import sys, torch; from qkv.parts.uncompiled import uncompiled; "
        "assert uncompiled(lambda x: x + 1)(1) == 2; sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
