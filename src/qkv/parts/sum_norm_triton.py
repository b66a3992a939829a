"""Launches the programs that sum and norm a stream, there and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from qkv.parts import sum_norm_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch
from qkv.parts.programs import multiprocessors

AT_ONCE = 2048  # numbers of a program on the way there
EACH = 32  # of them that a thread holds


class Backward(NamedTuple):
    """How the way back is divided."""

    numbers: int = 1024  # of a program at a time, if a row has no more
    each: int = 8  # of them that a thread holds
    at_once: int = 5  # programs that a multiprocessor has
    stages: int = 3  # tiles of rows on their way


BACKWARD = Backward()
ROUNDED = Backward(at_once=4)  # which takes more registers, where gradients are rounded to 8 bits
SUMMED = 64, 16  # programs and columns at a time, where what they kept is added up


def sum_norm(
    x: Tensor, added: Tensor | None, bias: Tensor | None, gain: Tensor, shift: Tensor | None, epsilon: float,
    rms: bool, total: Tensor, y: Tensor, statistics: Tensor, factor: Tensor | None = None,
) -> None:  # fmt: skip
    """Fills total = x + added + bias, y = norm(total), and statistics [2 …], which the way back reads. [… d]

    With a factor, one number, y is taken times it.
    """
    rows, width = x.shape[:-1].numel(), x.shape[-1]
    if not rows:
        return
    wide = triton.next_power_of_2(width)
    together = max(1, AT_ONCE // wide)
    launch(
        programs.sum_norm,
        (-(-rows // together), 1),
        (
            x, x if added is None else added, gain if bias is None else bias, gain, gain if shift is None else shift,
            gain if factor is None else factor, total, y, statistics,
        ),
        (rows, epsilon),
        {
            "ADDED": added is not None, "BIASED": bias is not None, "SHIFTED": shift is not None,
            "TIMES": factor is not None, "RMS": rms, "WIDTH": width, "R": together, "D": wide,
        },
        num_warps=_warps(together * wide, EACH),
    )  # fmt: skip


def sum_norm_back(
    of_total: Tensor | None, of_y: Tensor, total: Tensor, statistics: Tensor, gain: Tensor, rms: bool, of_x: Tensor,
    of_added: Tensor | None, sums: Tensor, how: Backward = BACKWARD, factors: Tensor | None = None,
    reach: Tensor | None = None, scales: Tensor | None = None, tops: Tensor | None = None,
) -> None:  # fmt: skip
    """Fills of_x and of_added [… d], and sums [3 d]: gradients of gain, shift and bias.

    With factors […] each row of of_y is taken times its own. With scales [3 …] and tops [2 4], which it fills too,
    of_added is in 8 bits, each row over a power of two of its own; tops begin with the largest of the first scales and
    of the second.
    """
    rows, width = total.shape[:-1].numel(), total.shape[-1]
    if not rows:
        sums.zero_()
        return
    wide = triton.next_power_of_2(width)
    together = max(1, how.numbers // wide)
    at_once = max(1, how.at_once * how.numbers // (together * wide))
    many = min(-(-rows // together), at_once * multiprocessors(total.device))
    kept = sums.new_empty(many, 3 * width)
    sizes = None if tops is None else kept.new_empty(2, many, dtype=torch.int32)
    launch(
        programs.sum_norm_back,
        (many, 1),
        (
            total if of_total is None else of_total, of_y, gain if factors is None else factors, total, statistics,
            gain, gain if reach is None else reach, of_x, of_x if of_added is None else of_added,
            kept if scales is None else scales, kept if sizes is None else sizes, kept,
        ),
        (rows,),
        {
            "HANDED": of_total is not None, "TIMES": factors is not None, "ADDED": of_added is not None,
            "SCALED": scales is not None, "RMS": rms, "WIDTH": width, "R": together, "D": wide, "STAGES": how.stages,
        },
        num_warps=_warps(together * wide, how.each),
    )  # fmt: skip
    of_programs(kept, sums, sizes, tops)


def of_programs(kept: Tensor, sums: Tensor, sizes: Tensor | None = None, tops: Tensor | None = None) -> None:
    """sums = the sum of what each program kept. [programs …] → […] And the largest of sizes, into tops [n 4]."""
    (several, columns), count = SUMMED, sums.numel()
    given = (kept, sums) if sizes is None or tops is None else (sizes, tops.view(torch.int32))
    tiles = {"SIZES": 0 if sizes is None else len(sizes), "P": several, "C": columns}
    launch(
        programs.of_programs, (-(-count // columns), 1), (kept, sums, *given), (len(kept), count), tiles, num_warps=4
    )


def _warps(numbers: int, each: int) -> int:
    return min(16, max(1, numbers // (32 * each)))
