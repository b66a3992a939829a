"""Launches the program that maps and activates."""

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
    (m, k), n = x.shape, len(weight)
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(m, tiling.rows) * triton.cdiv(n, tiling.columns)
    launch(
        programs.activated_map,
        (min(tiles, tiling.at_once * multiprocessors(x.device)), 1),
        (
            weight if bias is None else bias,
            _tiles(x, tiling.rows, tiling.inputs),
            _tiles(weight, tiling.columns, tiling.inputs),
            _tiles(y, tiling.rows, tiling.columns // 2),
        ),
        (m, n, k),
        {
            "BM": tiling.rows, "BN": tiling.columns, "BK": tiling.inputs, "GROUP": tiling.group,
            "BIASED": bias is not None, "ACTIVATION": activation,
        },
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )  # fmt: skip
    return y


def _tiles(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])
