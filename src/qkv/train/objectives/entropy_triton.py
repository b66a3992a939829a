"""Cross-entropy of rows of logits on a GPU: launches its program, with steps that suit the vocabulary.

Shapes: n rows, w columns of logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from qkv.parts.attention.kernels.launch_triton import launch
from qkv.train.objectives.entropy_programs import entropy_of_rows

if TYPE_CHECKING:
    from qkv.train.objectives.entropy_of_rows import Measures, Targets

_AT_ONCE = 4096  # columns at most that a program takes in one step
_OF_A_LANE = 8  # columns of a step: a load of 16 bytes in bfloat16


def measure(logits: Tensor, targets: Targets, into: Measures) -> None:
    """As `entropy_of_rows.measure`."""
    _run(logits, logits, targets, into, None, measured=True, sloped=False)


def differentiate(logits: Tensor, targets: Targets, normaliser: Tensor, gradient: Tensor, into: Tensor) -> None:
    """As `entropy_of_rows.differentiate`."""
    unused = normaliser, normaliser
    _run(logits, into, targets, (normaliser, *unused), gradient, measured=False, sloped=True)


def measure_and_differentiate(logits: Tensor, targets: Targets, into: Measures) -> None:
    """As `entropy_of_rows.measure_and_differentiate`."""
    _run(logits, logits, targets, into, None, measured=True, sloped=True)


def _run(
    logits: Tensor,
    slopes: Tensor,
    targets: Targets,
    measures: tuple[Tensor, Tensor, Tensor],
    gradient: Tensor | None,
    *,
    measured: bool,
    sloped: bool,
) -> None:
    rows, width = logits.shape
    if not rows:
        return
    # As numbers: what is loaded as a bool does not go together with every mask.
    wanted, real = targets.wanted.contiguous(), targets.real.contiguous().view(torch.int8)
    columns = min(_AT_ONCE, max(128, triton.next_power_of_2(width)))
    launch(
        entropy_of_rows,
        (rows, 1),
        (logits, slopes, wanted, real, *measures, measures[0] if gradient is None else gradient),
        (targets.vocabulary, width, logits.stride(0), slopes.stride(0), float(targets.smoothing)),
        {
            "MEASURED": measured,
            "SLOPED": sloped,
            "SMOOTHED": targets.smoothing > 0,
            "SCALED": gradient is not None,
            "N": columns,
        },
        num_warps=max(1, columns // (32 * _OF_A_LANE)),
    )
