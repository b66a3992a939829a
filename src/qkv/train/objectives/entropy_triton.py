"""Cross-entropy of rows of logits on a GPU: launches its program, with steps that suit the vocabulary.

Shapes: n rows, w columns of logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from qkv.parts.attention.kernels.launch_triton import launch
from qkv.train.objectives.entropy_programs import entropy_of_held_rows, entropy_of_rows

if TYPE_CHECKING:
    from qkv.train.objectives.entropy_of_rows import Measures, NarrowSlopes, Targets

_AT_ONCE = 4096  # columns at most that a program takes in one step
_OF_A_LANE = 8  # columns of a step: a load of 16 bytes in bfloat16
_HELD = 51_200  # columns at most that a program holds: 200 of a lane, in 100 of the 128 registers
_REGISTERS = 128  # that it has, so that two programs of eight warps run at once and one computes while the other reads


def measure(logits: Tensor, targets: Targets, into: Measures) -> None:
    """As `entropy_of_rows.measure`."""
    _run(logits, logits, targets, into, None, measured=True, sloped=False)


def differentiate(logits: Tensor, targets: Targets, normaliser: Tensor, gradient: Tensor, into: Tensor) -> None:
    """As `entropy_of_rows.differentiate`."""
    unused = normaliser, normaliser
    _run(logits, into, targets, (normaliser, *unused), gradient, measured=False, sloped=True)


def measure_and_differentiate(logits: Tensor, targets: Targets, into: Measures, narrow: NarrowSlopes | None) -> None:
    """As `entropy_of_rows.measure_and_differentiate`."""
    if _can_be_held(logits):
        _run_held(logits, targets, into, narrow)
    else:
        _run(logits, logits, targets, into, None, measured=True, sloped=True, narrow=narrow)


def _can_be_held(logits: Tensor) -> bool:
    """Rows of pairs of narrow numbers that fit. What torch compiles may not say how many registers it wants."""
    width, pairs = logits.shape[1], logits.stride(0) % 2 == 0 and logits.data_ptr() % 4 == 0
    narrow = logits.dtype == torch.bfloat16 and pairs and width % 2 == 0
    return narrow and width <= _HELD and not torch.compiler.is_compiling()


def _run_held(logits: Tensor, targets: Targets, measures: Measures, narrow: NarrowSlopes | None) -> None:
    rows, width = logits.shape
    if not rows:
        return
    warps = max(1, min(8, triton.next_power_of_2(width) // 1024))
    columns = warps * 32 * _OF_A_LANE
    launch(
        entropy_of_held_rows,
        (rows, 1),
        (logits, _bytes(narrow, logits), *_numbers(targets), *measures),
        (targets.vocabulary, width, logits.stride(0), _stride(narrow), float(targets.smoothing)),
        {
            "SMOOTHED": targets.smoothing > 0,
            "TIMES": 0 if narrow is None else narrow.times,
            "FULL": targets.vocabulary // columns,
            "TILES": triton.cdiv(width, columns),
            "N": columns // 2,
        },
        num_warps=warps,
        maxnreg=_REGISTERS,
    )


def _run(
    logits: Tensor,
    slopes: Tensor,
    targets: Targets,
    measures: tuple[Tensor, Tensor, Tensor],
    gradient: Tensor | None,
    *,
    measured: bool,
    sloped: bool,
    narrow: NarrowSlopes | None = None,
) -> None:
    rows, width = logits.shape
    if not rows:
        return
    columns = min(_AT_ONCE, max(128, triton.next_power_of_2(width)))
    launch(
        entropy_of_rows,
        (rows, 1),
        (
            logits, slopes, _bytes(narrow, logits), *_numbers(targets), *measures,
            measures[0] if gradient is None else gradient,
        ),
        (targets.vocabulary, width, logits.stride(0), slopes.stride(0), _stride(narrow), float(targets.smoothing)),
        {
            "MEASURED": measured,
            "SLOPED": sloped,
            "SMOOTHED": targets.smoothing > 0,
            "SCALED": gradient is not None,
            "TIMES": 0 if narrow is None else narrow.times,
            "N": columns,
        },
        num_warps=max(1, columns // (32 * _OF_A_LANE)),
    )  # fmt: skip


def _bytes(narrow: NarrowSlopes | None, others: Tensor) -> Tensor:
    return others if narrow is None else narrow.slopes.view(torch.int8)


def _stride(narrow: NarrowSlopes | None) -> int:
    return 0 if narrow is None else narrow.slopes.stride(0)


def _numbers(targets: Targets) -> tuple[Tensor, Tensor]:
    """What is wanted, and which rows count, not as bools: loaded ones do not go together with every mask."""
    return targets.wanted.contiguous(), targets.real.contiguous().view(torch.int8)
