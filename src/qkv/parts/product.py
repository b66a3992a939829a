"""Products of matrices with what comes behind them, by the program of `product.cu`, for Hopper GPUs.

Shapes: m rows, k inputs, n outputs; x [m k], W [n k] (or [k n], where it says so). Rows begin at multiples of 16 bytes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.parts import cuda
from qkv.parts.programs import has_copy_engine

FILE = Path(__file__).with_suffix(".cu")
THREADS = 384  # a warpgroup that orders copies, two that multiply
WARPS = 8  # which multiply
INPUTS = 64  # of a stage
ROOM = 16, 64  # rows and columns that a warp stores at once
ACTIVATIONS = {"": 0, "gelu": 1, "gelu_tanh": 2, "gelu_quick": 3, "silu": 4, "relu": 5}  # as the program counts them


class Tiling(NamedTuple):
    rows: int
    columns: int
    stages: int  # of inputs on their way
    rooms: int  # stores of a warp on their way
    cluster: int = 1  # blocks that share the columns of W which they read
    group: int = 8  # tiles of a cluster below each other that come one after the other

    @property
    def shared(self) -> int:
        """Bytes of shared memory, as the program lays it out."""
        of_stages = self.stages * (self.rows + self.columns) * INPUTS * 2
        of_warps = WARPS * (self.rooms * ROOM[0] * ROOM[1] * 2 + self.columns * 4)
        return of_stages + of_warps + (2 * self.stages + 2 + WARPS + 1) * 8 + 1024  # barriers; where it begins


ALIGNED = 16  # bytes, as the copy engine asks
PLAIN = Tiling(128, 192, stages=4, rooms=2)
STORING = PLAIN._replace(cluster=2)
READING = Tiling(128, 192, stages=3, rooms=6)  # what is read comes into the rooms from which y is stored


def runs_on(device: torch.device) -> bool:
    return device.type == "cuda" and has_copy_engine(device) and cuda.has_bindings()


runs_on._dynamo_marked_constant = True  # type: ignore[attr-defined]  # for compilers: a fact, not to be traced


def activated_map(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, tiling: Tiling = STORING) -> Tensor:
    """activation(x Wᵀ + b), [m k] [n k] [n] → [m n]"""
    y = x.new_empty(len(x), len(weight))
    _run(tiling, x, weight, y, y, bias, y, activation=activation)
    return y


def both(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, tiling: Tiling = STORING
) -> tuple[Tensor, Tensor]:
    """z = x Wᵀ + b and activation(z)."""
    z, y = x.new_empty(len(x), len(weight)), x.new_empty(len(x), len(weight))
    _run(tiling, x, weight, y, z, bias, y, activation=activation, keeps=1)
    return z, y


def map_times_slope(
    x: Tensor, weight: Tensor, z: Tensor, activation: str, tiling: Tiling = READING
) -> tuple[Tensor, Tensor]:
    """dz = (x W) · activation'(z) and its sum over rows in float32, [m k] [k n] [m n] → [m n] [n]"""
    from qkv.parts.sum_norm_triton import of_programs  # Triton comes with torch's builds for GPUs only

    dz, sums = torch.empty_like(z), z.new_empty(z.shape[1], dtype=torch.float32)
    kept = sums.new_empty(-(-len(z) // tiling.rows), z.shape[1])
    _run(tiling, x, weight, dz, z, None, kept, activation=activation, across=1, reads=2)
    of_programs(kept, sums)
    return dz, sums


def added_map(
    x: Tensor, weight: Tensor, bias: Tensor | None, added: Tensor | None, y: Tensor, tiling: Tiling | None = None
) -> Tensor:
    """y = x Wᵀ + b + added, [m k] [n k] [n] [m n] → [m n], where y may be what is added."""
    tiling = tiling or (PLAIN if added is None else READING)
    _run(tiling, x, weight, y, y if added is None else added, bias, y, reads=0 if added is None else 1)
    return y


def map_across(x: Tensor, weight: Tensor, tiling: Tiling = PLAIN) -> Tensor:
    """x W, [m k] [k n] → [m n]"""
    y = x.new_empty(len(x), weight.shape[1])
    _run(tiling, x, weight, y, y, None, y, across=1)
    return y


def aligned(x: Tensor) -> Tensor:
    """Rows as the copy engine takes them."""
    fits = x.stride(1) == 1 and x.stride(0) * x.itemsize % ALIGNED == 0 and x.data_ptr() % ALIGNED == 0
    return x if fits and x.stride(0) >= x.shape[1] else x.clone(memory_format=torch.contiguous_format)


def _run(
    tiling: Tiling, x: Tensor, weight: Tensor, y: Tensor, z: Tensor, bias: Tensor | None, sums: Tensor,
    *, activation: str = "", across: int = 0, keeps: int = 0, reads: int = 0,
) -> None:  # fmt: skip
    rows, columns, _, _, cluster, _ = tiling
    if bias is not None:
        bias = (bias if bias.dtype == x.dtype else bias.float()).contiguous()
    kind = 0 if bias is None else 1 if bias.dtype == x.dtype else 2
    program = _program(tiling, x.dtype == torch.float16, kind, activation, across, keeps, reads)
    box = (INPUTS // cluster, ROOM[1]) if across else (columns // cluster, INPUTS)
    arguments = (
        cuda.tiles_of(x, rows, INPUTS),
        cuda.tiles_of(weight, *box),
        cuda.tiles_of(y, *ROOM),
        cuda.tiles_of(z, *ROOM),
        x if bias is None else bias,
        sums,
        *y.shape,
        x.shape[1],
    )
    tiles = -(-len(y) // (rows * cluster)) * -(-y.shape[1] // columns)
    blocks = cluster * min(tiles, _multiprocessors(y.device) // cluster)
    program.launch((blocks, 1), arguments, cluster=cluster)


@cache
def _program(
    tiling: Tiling, half: bool, bias: int, activation: str, across: int, keeps: int, reads: int
) -> cuda.Program:
    numbers = {
        "BM": tiling.rows,
        "BN": tiling.columns,
        "STAGES": tiling.stages,
        "ROOMS": tiling.rooms,
        "CLUSTER": tiling.cluster,
        "GROUP": tiling.group,
        "HALF": int(half),
        "BIAS": bias,
        "ACTIVATION": ACTIVATIONS[activation],
        "ACROSS": across,
        "KEEPS": keeps,
        "READS": reads,
    }
    return cuda.program(FILE, "product", tuple(numbers.items()), THREADS, tiling.shared)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
