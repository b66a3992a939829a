"""Launches the programs that bring the weights of a block into 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
from torch import Tensor

from qkv.parts.attention.kernels.launch_triton import launch
from qkv.train.float8 import rounding_triton
from qkv.train.float8 import weights_programs as programs

if TYPE_CHECKING:
    from qkv.train.float8.bounds import Learned


class Strips(NamedTuple):
    """Of weights that are read for their sizes: rows with columns at a time, and columns with rows at a time."""

    rows: int = 16
    columns: int = 256
    tall: int = 256
    wide: int = 16
    warps: int = 8


STRIPS = Strips()
AT_ONCE = 1024  # numbers, where scales are made


def narrow(
    learned: Learned, apart: int, slack: float, steepest: float
) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """As `bounds._narrow_by_torch`."""
    weights = [each.contiguous() for each in learned.weights]
    project, out, inner, _ = weights
    (gain, shift), (second_gain, second_shift) = learned.norms
    shapes = {"P": len(project), "K": project.shape[1], "D": len(out), "V": out.shape[1], "H": len(inner)}
    scales, of_columns = project.new_empty(9, 2, apart), project.new_empty(1, shapes["V"])
    strips = sum(triton.cdiv(len(each), STRIPS.rows) for each in weights[:3]) + triton.cdiv(shapes["H"], STRIPS.wide)
    sizes = project.new_empty(2, strips, dtype=torch.int32)
    values = {"VALUES": learned.values}
    launch(
        programs.weigh, (strips, 1), (*weights, sizes), (),
        {**shapes, **values, "R": STRIPS.rows, "N": STRIPS.columns, "TALL": STRIPS.tall, "C": STRIPS.wide},
        num_warps=STRIPS.warps,
    )  # fmt: skip
    maybe = shift, second_shift, learned.value_bias, learned.inner_bias
    there = [gain if each is None else each for each in maybe]
    names = "SHIFTED", "SECOND_SHIFTED", "VALUE_BIASED", "INNER_BIASED"
    launch(
        programs.bound, (1, 1), (sizes, gain, there[0], second_gain, *there[1:], scales, of_columns),
        (strips, slack, steepest),
        {
            **{name: each is not None for name, each in zip(names, maybe, strict=True)}, **shapes, **values,
            "R": STRIPS.rows, "APART": apart, "S": AT_ONCE,
        },
        num_warps=4,
    )  # fmt: skip
    tile, kind = rounding_triton.WEIGHTS, torch.float8_e4m3fn
    made = [(torch.empty_like(each, dtype=kind), each.new_empty(each.shape[::-1], dtype=kind)) for each in weights]
    views = [each for rows, across in made for each in (rows.view(torch.int8), across.view(torch.int32))]
    tiles = sum(triton.cdiv(each.shape[0], tile.rows) * triton.cdiv(each.shape[1], tile.columns) for each in weights)
    launch(
        programs.round_weights, (tiles, 1), (*weights, scales, *views), (),
        {**shapes, "APART": apart, "R": tile.rows // 4, "N": tile.columns},
        num_warps=tile.warps,
    )  # fmt: skip
    return made, scales, of_columns
