"""Launches the programs that map and activate, and their way back."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from qkv.parts import activated_map_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch


class Tiling(NamedTuple):
    rows: int
    columns: int
    inputs: int  # of a step
    group: int  # tiles below each other that come one after the other
    warps: int
    stages: int  # steps that are on their way
    at_once: int  # programs on a multiprocessor: while one applies the activation, the other multiplies


TILING = Tiling(128, 128, 64, 8, warps=4, stages=3, at_once=2)


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def activated_map(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, tiling: Tiling = TILING) -> Tensor:
    """activation(x Wᵀ + b), [m k] [n k] [n] → [m n]: rows of x and W begin at multiples of 16 bytes."""
    y = x.new_empty(len(x), len(weight))
    _map(x, weight, bias, y, None, activation, tiling)
    return y


def both(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, tiling: Tiling = TILING
) -> tuple[Tensor, Tensor]:
    """z = x Wᵀ + b and activation(z), as `activated_map` does it."""
    z, y = x.new_empty(len(x), len(weight)), x.new_empty(len(x), len(weight))
    _map(x, weight, bias, y, z, activation, tiling)
    return z, y


def _map(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, z: Tensor | None, activation: str, tiling: Tiling
) -> None:
    half = tiling.columns // 2
    launch(
        programs.activated_map,
        _grid(y, tiling),
        (
            weight if bias is None else bias,
            _tiles(x, tiling.rows, tiling.inputs),
            _tiles(weight, tiling.columns, tiling.inputs),
            _tiles(y, tiling.rows, half),
            None if z is None else _tiles(z, tiling.rows, half),
        ),
        (*y.shape, x.shape[1]),
        {**_steps(tiling), "BIASED": bias is not None, "ACTIVATION": activation},
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )


def map_times_slope(
    x: Tensor, weight: Tensor, z: Tensor, activation: str, tiling: Tiling = TILING
) -> tuple[Tensor, Tensor]:
    """dz = (x W) · activation'(z) and its sum over rows in float32, [m k] [k n] [m n] → [m n] [n]"""
    dz, quarter = torch.empty_like(z), tiling.columns // 4
    sums = torch.empty(triton.cdiv(len(z), tiling.rows), z.shape[1], dtype=torch.float32, device=z.device)
    launch(
        programs.map_times_slope,
        _grid(z, tiling),
        (
            sums,
            _tiles(x, tiling.rows, tiling.inputs),
            _tiles(weight, tiling.inputs, tiling.columns),
            _tiles(z, tiling.rows, quarter),
            _tiles(dz, tiling.rows, quarter),
        ),
        (*z.shape, x.shape[1]),
        {**_steps(tiling), "ACTIVATION": activation},
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return dz, sums.sum(0)


def _grid(y: Tensor, tiling: Tiling) -> tuple[int, int]:
    tiles = triton.cdiv(y.shape[0], tiling.rows) * triton.cdiv(y.shape[1], tiling.columns)
    return min(tiles, tiling.at_once * multiprocessors(y.device)), 1


def _steps(tiling: Tiling) -> dict[str, int]:
    return {"BM": tiling.rows, "BN": tiling.columns, "BK": tiling.inputs, "GROUP": tiling.group}


def _tiles(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])
