"""Launches the programs that round to 8 bits, by rows and by columns.

Shapes: m rows, k their width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from qkv.parts.attention.kernels.launch_triton import launch
from qkv.train.float8 import rounding_programs as programs

AT_ONCE = 4096  # numbers that a program rounds in one step
BESIDE = 1024  # columns of each part that a program holds at once
EACH = 16  # of them that a thread holds


class Tile(NamedTuple):
    rows: int
    columns: int
    warps: int


TURN = Tile(128, 128, 4)  # of a program that turns
ACTIVATE = Tile(128, 64, 4)  # of one that activates what it turns
WEIGHTS = Tile(128, 64, 4)  # of one that rounds weights


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `rows.rounded`."""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, width = x.shape
    narrow = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    columns = min(AT_ONCE, max(64, triton.next_power_of_2(width)))
    together = AT_ONCE // columns
    launch(
        programs.round_rows,
        (triton.cdiv(rows, together), 1),
        (x, narrow, scales),
        (rows, width, x.stride(0)),
        {"R": together, "N": columns},
        num_warps=8,
    )
    return narrow, scales


def rounded_side_by_side(parts: Sequence[Tensor], others: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `rows.rounded_side_by_side`, for two or three parts."""
    parts = [each if each.stride(1) == 1 else each.contiguous() for each in parts]
    widths = [each.shape[1] for each in parts]
    rows, width = parts[0].shape[0], sum(widths)
    narrow = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=others.device)
    scales, both, top = torch.empty_like(others), torch.empty_like(others), others.new_zeros(())
    columns = triton.next_power_of_2(max(widths))
    together = max(1, BESIDE // columns)
    three = [*parts, parts[-1]][:3]
    launch(
        programs.round_side_by_side,
        (triton.cdiv(rows, together), 1),
        (*three, others, narrow.view(torch.int8), scales, both, top.view(torch.int32)),
        (rows, *(each.stride(0) for each in three)),
        {**dict(zip("ABC", [*widths, 0], strict=False)), "R": together, "N": columns},
        num_warps=min(8, max(1, together * columns // (32 * EACH))),
    )
    return narrow, scales, both, top


def turned(
    narrow: Tensor, factors: Tensor | None, top: Tensor | None, sums_by: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """As `rows.turned`, for rows that are a multiple of 4.

    Sums of tiles are added in their order, so that they come out the same each time.
    """
    rows, width = narrow.shape
    tiles = triton.cdiv(rows, TURN.rows)
    made = torch.empty(width, rows, dtype=narrow.dtype, device=narrow.device)
    sums = None if sums_by is None else torch.empty(tiles, width, dtype=torch.float32, device=narrow.device)
    plain = narrow.contiguous().view(torch.int8)
    given = (each if each is not None else plain for each in (factors, top, sums_by, sums))
    launch(
        programs.turn,
        (tiles, triton.cdiv(width, TURN.columns)),
        (plain, made.view(torch.int32), *given),
        (rows, width),
        {"FOLDED": factors is not None, "SUMMED": sums is not None, "R": TURN.rows // 4, "N": TURN.columns},
        num_warps=TURN.warps,
    )
    return made, None if sums is None else _added(sums)


def activated(z: Tensor, inverse: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """As `activations.activated`, for rows that are a multiple of 4."""
    (rows, width), kind, z = z.shape, torch.float8_e4m3fn, z.contiguous()
    narrow, across = z.new_empty(rows, width, dtype=kind), z.new_empty(width, rows, dtype=kind)
    launch(
        programs.round_activated,
        (triton.cdiv(rows, ACTIVATE.rows), triton.cdiv(width, ACTIVATE.columns)),
        (z, inverse, narrow.view(torch.int8), across.view(torch.int32)),
        (rows, width, 0 if inverse.numel() == 1 else 1),
        {"ACTIVATION": name, "R": ACTIVATE.rows // 4, "N": ACTIVATE.columns},
        num_warps=ACTIVATE.warps,
    )
    return narrow, across


def sloped(
    above: Tensor, z: Tensor, inverse: Tensor, factors: Tensor, top: Tensor, sums_by: Tensor, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """As `activations.sloped`, for rows that are a multiple of 4."""
    (rows, width), kind, tiles = z.shape, torch.float8_e4m3fn, triton.cdiv(z.shape[0], ACTIVATE.rows)
    narrow, across = z.new_empty(rows, width, dtype=kind), z.new_empty(width, rows, dtype=kind)
    sums = z.new_empty(tiles, width, dtype=torch.float32)
    launch(
        programs.round_sloped,
        (tiles, triton.cdiv(width, ACTIVATE.columns)),
        (
            above.contiguous(), z.contiguous(), inverse, factors, top, sums_by,
            narrow.view(torch.int8), across.view(torch.int32), sums,
        ),
        (rows, width),
        {"ACTIVATION": name, "R": ACTIVATE.rows // 4, "N": ACTIVATE.columns},
        num_warps=ACTIVATE.warps,
    )  # fmt: skip
    return narrow, across, _added(sums)


def _added(sums: Tensor) -> Tensor:
    """Of all tiles in their order. [tiles n] → [n]"""
    tiles, width = sums.shape
    total = sums.new_empty(width)
    launch(
        programs.add_tiles, (triton.cdiv(width, 32), 1), (sums, total), (tiles, width), {"T": 64, "N": 32}, num_warps=8
    )
    return total
